"""Reading fields of a request: each error names the field, as ``input[3].content[0].text``. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.dialects.base import BadRequest


def text_of(owner: Mapping[str, Any], name: str, where: str) -> str:
    """A field that must be a string. Raises BadRequest."""
    value = owner.get(name)
    if not isinstance(value, str):
        path = f"{where}.{name}"
        if value is None:
            raise BadRequest(f"Missing required parameter: '{path}'.", path)
        raise BadRequest(f"'{path}' must be a string.", path)
    return value


def objects(value: Any, where: str) -> list[dict[str, Any]]:
    """An array of objects. Raises BadRequest."""
    if not isinstance(value, list):
        raise BadRequest(f"'{where}' must be an array.", where)
    for index, entry in enumerate(value):
        if not isinstance(entry, dict):
            raise BadRequest(f"'{where}[{index}]' must be an object.", f"{where}[{index}]")
    return value
