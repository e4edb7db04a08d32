"""Thinking in the Responses API: items of type ``reasoning``. Pure.

Stateless harnesses (Codex) echo only what is opaque to them, ``encrypted_content``, and drop the readable text. There is
nothing to hide here, so that field holds the text itself, marked as ours and encoded, and comes back unchanged.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

from proxy.dialects.responses.reading import objects, text_of

SEAL = "singletree.1."


def seal(text: str) -> str:
    """``encrypted_content`` for a text."""
    return SEAL + base64.b64encode(text.encode("utf-8", "replace")).decode()


def unseal(sealed: Any) -> str | None:
    """The text; None for what another server sealed."""
    if not isinstance(sealed, str) or not sealed.startswith(SEAL):
        return None
    try:
        return base64.b64decode(sealed.removeprefix(SEAL), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return None


def item_text(item: Mapping[str, Any], where: str) -> str | None:
    """The text of an item: the readable one, else the sealed one, else the summary. Raises BadRequest."""
    if item.get("content"):
        parts = objects(item["content"], f"{where}.content")
        return "".join(text_of(part, "text", f"{where}.content[{i}]") for i, part in enumerate(parts))
    if text := unseal(item.get("encrypted_content")):
        return text
    if item.get("summary"):
        parts = objects(item["summary"], f"{where}.summary")
        return "\n\n".join(text_of(part, "text", f"{where}.summary[{i}]") for i, part in enumerate(parts))
    return None
