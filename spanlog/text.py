"""Text from outside, made storable: PostgreSQL refuses NUL in text and JSON, and UTF-8 has no lone surrogates."""

from __future__ import annotations

import re
from typing import Any

UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
REPLACEMENT = "�"


def storable(value: Any) -> Any:
    """``value`` (text, or a JSON value) with each unstorable character replaced by U+FFFD.

    Only for what is kept for looking at: errors, output, informational values; never for tokens or requests.
    """
    if isinstance(value, str):
        return UNSTORABLE.sub(REPLACEMENT, value)
    if isinstance(value, dict):
        return {storable(str(key)): storable(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [storable(item) for item in value]
    return value
