"""Content-addressed documents: stored once, however many spans name them."""

from __future__ import annotations

import hashlib
import zlib
from typing import Any

RAW = "raw"
ZLIB = "zlib"
COMPRESS_FROM = 512
"""Bytes from which compression is tried: below, the saving is not worth the row's overhead."""


def blob_row(data: bytes) -> dict[str, Any]:
    """The row of ``blobs`` for these bytes: hash (BLAKE2b-256, hex), codec, data."""
    digest = hashlib.blake2b(data, digest_size=32).hexdigest()
    if len(data) >= COMPRESS_FROM:
        packed = zlib.compress(data, 1)
        if len(packed) < len(data):
            return {"hash": digest, "codec": ZLIB, "data": packed}
    return {"hash": digest, "codec": RAW, "data": data}


def unpack(codec: str, data: bytes) -> bytes:
    """The original bytes. Raises ValueError for an unknown codec."""
    if codec == ZLIB:
        return zlib.decompress(data)
    if codec != RAW:
        raise ValueError(f"unknown blob codec {codec!r}")
    return bytes(data)
