"""Reading JSON that stands for Google's protocol buffers.

Field names come in camel case from Google's clients and in snake case from people who follow the REST examples; the
JSON mapping of protocol buffers allows both. Numbers may come as strings, and whole numbers with a fraction of zero.
Names inside function arguments, function responses and JSON schemas are the caller's own and are left alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from proxy.dialects.base import BadRequest

_UNDERSCORE = re.compile(r"_([a-z0-9])")


def fields(value: Any, where: str) -> dict[str, Any]:
    """A message's fields by their camel-case names, those that are null left out. Raises BadRequest."""
    if not isinstance(value, dict):
        raise invalid(where, "an object", value)
    return {
        _UNDERSCORE.sub(lambda match: match[1].upper(), name): field
        for name, field in value.items()
        if field is not None
    }


def items(message: Mapping[str, Any], name: str, where: str) -> list[Any]:
    """A repeated field; empty where it is missing. Raises BadRequest."""
    value = message.get(name, [])
    if not isinstance(value, list):
        raise invalid(f"{where}.{name}" if where else name, "an array", value)
    return value


def text(message: Mapping[str, Any], name: str, where: str) -> str | None:
    """A string field; None where it is missing. Raises BadRequest."""
    value = message.get(name)
    if value is not None and not isinstance(value, str):
        raise invalid(f"{where}.{name}", "a string", value)
    return value


def number(message: Mapping[str, Any], name: str, where: str) -> float | None:
    """A float field. Raises BadRequest."""
    value = message.get(name)
    if value is None:
        return None
    try:
        if not isinstance(value, bool) and math.isfinite(float(value)):
            return value if isinstance(value, int | float) else float(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise invalid(f"{where}.{name}", "a number", value)


def integer(message: Mapping[str, Any], name: str, where: str) -> int | None:
    """An int32 or int64 field. Raises BadRequest."""
    value = message.get(name)
    if value is None or type(value) is int:
        return value
    try:
        if not isinstance(value, bool) and float(value).is_integer():
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise invalid(f"{where}.{name}", "an integer", value)


def boolean(message: Mapping[str, Any], name: str, where: str) -> bool:
    """A bool field; false where it is missing. Raises BadRequest."""
    value = message.get(name, False)
    if not isinstance(value, bool):
        raise invalid(f"{where}.{name}", "a boolean", value)
    return value


def invalid(where: str, wanted: str, value: Any) -> BadRequest:
    return BadRequest(f"Invalid value at '{where}': {wanted} is needed, not {type(value).__name__}.", where)
