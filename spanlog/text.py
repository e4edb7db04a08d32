"""Values from outside, made storable: PostgreSQL refuses NUL in text and JSON, UTF-8 has no lone surrogates, and JSON
no NaN."""

from __future__ import annotations

import math
import re
from typing import Any

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "�"
PLAIN = frozenset({str, int, bool, type(None)})
"""Types that hold no number that is not finite."""


def storable(value: Any) -> Any:
    """``value`` (text, or a JSON value) with each unstorable character replaced by U+FFFD, and NaN by null.

    Only for what is kept for looking at: errors, output, informational values; never for tokens or requests.
    """
    if isinstance(value, str):
        return UNSTORABLE.sub(REPLACEMENT, value)
    if isinstance(value, dict):
        return {storable(str(key)): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return finite(value)


def finite(value: Any) -> Any:
    """``value`` (a JSON value) with null for each number that is NaN or infinite."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, dict):
        return {key: item if type(item) in PLAIN else finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def refuse_unstorable(value: Any) -> None:
    """Raises ValueError unless ``value`` (text, or a JSON value) can be kept as it is, on every database."""
    if isinstance(value, str) and UNSTORABLE.search(value):
        raise ValueError("text with NUL or a lone surrogate cannot be stored")
    if isinstance(value, float) and not math.isfinite(value):
        raise ValueError("NaN and infinite numbers cannot be stored: leave them out, or send null")
    if isinstance(value, dict):
        for key, item in value.items():
            refuse_unstorable(key)
            refuse_unstorable(item)
    if isinstance(value, list):
        for item in value:
            refuse_unstorable(item)
