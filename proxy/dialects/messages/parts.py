"""Content blocks of one message as the content of a hub message. Pure.

One text block becomes a string, so that a harness that sends the same text now as a string and now as a block (Claude
Code does, when ``cache_control`` moves on) sends the same hub message.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from proxy.dialects.messages.reading import Ignored, optional, require, wrong

_TEXT = frozenset({"text"})
_MEDIA = frozenset({"source"})
_SEARCH_RESULT = frozenset({"title", "source", "content"})
_REFERENCE = frozenset({"tool_name"})
KINDS = frozenset({"text", "image", "document", "search_result"})
"""Blocks that are content in themselves; all others have a place in the conversation (see ``history``)."""

Part = dict[str, Any]


def content_of(parts: list[Part]) -> str | list[Part]:
    """Parts as a hub message has them. None at all are the empty string."""
    if not parts:
        return ""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def result_parts(blocks: Iterable[dict[str, Any]], path: str, ignored: Ignored) -> list[Part]:
    """The content of a tool's result. A ``tool_reference`` is what a search for tools found: the tools are all shown
    from the start, so its name says enough. Raises BadRequest."""
    parts: list[Part] = []
    for index, block in enumerate(blocks):
        where = f"{path}.{index}"
        if block.get("type") == "tool_reference":
            ignored.fields(block, _REFERENCE, "tool_reference")
            parts.append(_text(require(block, "tool_name", str, "a string", where)))
        else:
            parts += read_block(block, where, ignored)
    return parts


def read_block(block: dict[str, Any], path: str, ignored: Ignored) -> list[Part]:
    """One block of ``KINDS``. Raises BadRequest."""
    kind = block.get("type")
    if kind == "text":
        ignored.fields(block, _TEXT, "text")
        return [_text(require(block, "text", str, "a string", path))]
    if kind == "image":
        ignored.fields(block, _MEDIA, "image")
        return [{"type": "image_url", "image_url": {"url": _source_url(block, path)}}]
    if kind == "document":
        ignored.fields(block, _MEDIA, "document")
        return _document(block, path, ignored)
    if kind == "search_result":
        ignored.fields(block, _SEARCH_RESULT, "search_result")
        texts = [require(block, name, str, "a string", path) for name in ("title", "source")]
        return [*map(_text, texts), *_nested(block, path, ignored)]
    raise wrong(f"{path}.type", f"{kind!r} is no type of content that is served here")


def _text(text: str) -> Part:
    return {"type": "text", "text": text}


def _nested(block: dict[str, Any], path: str, ignored: Ignored) -> list[Part]:
    content = require(block, "content", list, "an array", path)
    parts: list[Part] = []
    for index, inner in enumerate(content):
        where = f"{path}.content.{index}"
        if not isinstance(inner, dict) or inner.get("type") not in ("text", "image"):
            raise wrong(where, "must be a text or image block")
        parts += read_block(inner, where, ignored)
    return parts


def _document(block: dict[str, Any], path: str, ignored: Ignored) -> list[Part]:
    source = require(block, "source", dict, "an object", path)
    if source.get("type") == "text":
        return [_text(require(source, "data", str, "a string", f"{path}.source"))]
    if source.get("type") == "content":
        if isinstance(text := source.get("content"), str):
            return [_text(text)]
        return _nested(source, f"{path}.source", ignored)
    return [{"type": "file", "file": {"file_data": _source_url(block, path)}}]


def _source_url(block: dict[str, Any], path: str) -> str:
    """Where the bytes are: a URL, or the bytes themselves as a data URL."""
    source = require(block, "source", dict, "an object", path)
    path += ".source"
    if source.get("type") == "url":
        return require(source, "url", str, "a string", path)
    if source.get("type") == "base64":
        data = require(source, "data", str, "a string", path)
        default = "application/pdf" if block["type"] == "document" else "image/png"
        kind = optional(source, "media_type", str, "a string", path) or default
        return f"data:{kind};base64,{data}"
    raise wrong(f"{path}.type", "must be 'base64' or 'url': no files are stored here")
