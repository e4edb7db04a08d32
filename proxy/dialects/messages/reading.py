"""How the parts of a request are read: one wording for what is wrong with them, one list of what is dropped. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from proxy.dialects.base import BadRequest

UNRECORDED = frozenset({"type", "cache_control"})
"""Fields that every block may have and that change nothing in a reply. ``cache_control`` moves from call to call."""


def wrong(path: str, words: str) -> BadRequest:
    """``path`` as Anthropic writes it: ``messages.0.content.1.text``."""
    return BadRequest(f"{path}: {words}", path)


def require(block: Mapping[str, Any], name: str, kind: type, words: str, path: str) -> Any:
    """The field ``name``, of type ``kind``. Raises BadRequest."""
    value = block.get(name)
    if not isinstance(value, kind):
        raise wrong(_join(path, name), "field required" if value is None else f"must be {words}")
    return value


def optional(block: Mapping[str, Any], name: str, kind: type, words: str, path: str) -> Any:
    """The field ``name``, None where it is missing or null. Raises BadRequest."""
    value = block.get(name)
    if value is not None and not isinstance(value, kind):
        raise wrong(_join(path, name), f"must be {words}")
    return value


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def blocks_of(content: Any, path: str) -> list[dict[str, Any]]:
    """Content as blocks: a string is one text block. Raises BadRequest."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise wrong(path, "must be a string or an array of content blocks")
    return content


class Ignored:
    """Names of what a request holds and no reply can depend on, each once, in the order of its first appearance."""

    def __init__(self) -> None:
        self._names: dict[str, None] = {}

    def add(self, name: str) -> None:
        self._names[name] = None

    def fields(self, block: Mapping[str, Any], known: frozenset[str], where: str) -> None:
        """Records the fields of ``block`` that are not ``known``."""
        for name in block.keys() - known - UNRECORDED:
            if block[name] is not None:
                self._names[f"{where}.{name}"] = None

    def names(self) -> list[str]:
        return list(self._names)
