"""Token, logprob and version arrays as bytes: one codec byte, then little-endian data.

JSON would take five times the room and thirty times the time. Codecs: 0 raw int32, 1 raw float32, 2 run-length int32
(pairs of value and count; the versions of a span are one run as a rule, so 9 bytes whatever its length), 3 deflated
int32 (all first bytes, then all second ones, and so on, deflated: ids of tokens in text take 1.5 to 2 bytes).
Logprobs are kept as they are: their mantissas are noise, and what deflating saves on them (5 %) is not worth its time.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import cast

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
Floats = NDArray[np.float32]

RAW_INTS = 0
RAW_FLOATS = 1
RUN_LENGTH_INTS = 2
DEFLATED_INTS = 3
DEFLATE_FROM = 16
"""Integers from which deflating is tried."""

INT32 = np.iinfo(np.int32)


def as_ints(values: Sequence[int] | NDArray[np.integer]) -> Ints:
    """``values`` [n] as int32 [n], the same object where they are. Raises ValueError if one does not fit, or if it is
    not one-dimensional."""
    if isinstance(values, np.ndarray) and values.dtype == np.int32 and values.ndim == 1:
        return cast("Ints", values)
    array = np.asarray(values)
    if array.ndim != 1:
        raise ValueError(f"expected one dimension, got shape {array.shape}")
    if array.size == 0:
        return np.zeros(0, np.int32)
    if array.dtype.kind not in "iu":
        raise ValueError(f"expected integers, got {array.dtype}")
    if array.min() < INT32.min or array.max() > INT32.max:
        raise ValueError("an integer does not fit into 32 bits")
    return array.astype(np.int32)


def encode_ints(values: Sequence[int] | NDArray[np.integer]) -> bytes:
    """int32 [n] -> bytes: run-length encoded, deflated or raw. Raises ValueError as ``as_ints``."""
    array = as_ints(values)
    if array.size > 2 and array[0] == array[1]:  # versions are one run or two, ids of tokens next to never
        last = np.flatnonzero(array[1:] != array[:-1])  # of each run but the final one
        if 2 * (last.size + 1) < array.size:
            ends = np.append(last, array.size - 1)
            pairs = np.empty((ends.size, 2), "<i4")
            pairs[:, 0] = array[ends]
            pairs[:, 1] = ends
            pairs[1:, 1] -= ends[:-1].astype("<i4")
            pairs[0, 1] += 1
            return bytes([RUN_LENGTH_INTS]) + pairs.tobytes()
    raw = array.astype("<i4", copy=False)
    if array.size >= DEFLATE_FROM:
        planes = np.ascontiguousarray(raw.view(np.uint8).reshape(-1, 4).T)
        packed = zlib.compress(planes.tobytes(), 1)
        if len(packed) < raw.nbytes:
            return bytes([DEFLATED_INTS]) + packed
    return bytes([RAW_INTS]) + raw.tobytes()


def decode_ints(data: bytes) -> Ints:
    """Bytes of ``encode_ints`` -> int32 [n]. Raises ValueError for another codec."""
    if not data or data[0] not in (RAW_INTS, RUN_LENGTH_INTS, DEFLATED_INTS):
        raise ValueError("not an integer array")
    if data[0] == DEFLATED_INTS:
        planes = np.frombuffer(zlib.decompress(memoryview(data)[1:]), np.uint8).reshape(4, -1)
        return np.ascontiguousarray(planes.T).view("<i4").reshape(-1).astype(np.int32)
    array = np.frombuffer(data, "<i4", offset=1)
    if data[0] == RUN_LENGTH_INTS:
        pairs = array.reshape(-1, 2)
        array = np.repeat(pairs[:, 0], pairs[:, 1])
    return array.astype(np.int32)


def encode_floats(values: Sequence[float] | NDArray[np.floating]) -> bytes:
    """float32 [n] -> bytes; NaN and infinities survive. Raises ValueError if it is not one-dimensional."""
    array = np.asarray(values, dtype="<f4")
    if array.ndim != 1:
        raise ValueError(f"expected one dimension, got shape {array.shape}")
    return bytes([RAW_FLOATS]) + array.tobytes()


def decode_floats(data: bytes) -> Floats:
    """Bytes of ``encode_floats`` -> float32 [n]. Raises ValueError for another codec."""
    if not data or data[0] != RAW_FLOATS:
        raise ValueError("not a float array")
    return np.frombuffer(data, "<f4", offset=1).astype(np.float32)
