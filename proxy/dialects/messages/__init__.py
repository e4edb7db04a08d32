"""Anthropic's Messages API, which Claude Code speaks alone and many other harnesses on demand. Pure.

``reading``, ``parts``, ``history``, ``tools`` and ``request`` decode a request to the hub; ``reply`` and ``stream``
encode what the engine says; ``failures`` and ``models`` are the shapes of everything else. docs/dialects/messages.md has the
table of what is mapped, ignored and refused.
"""

from __future__ import annotations

from typing import Any

from proxy.dialects.base import Failure, Target
from proxy.dialects.messages.failures import error
from proxy.dialects.messages.models import model_info, model_list
from proxy.dialects.messages.reply import Head, whole
from proxy.dialects.messages.request import Request, read_request
from proxy.dialects.messages.stream import EventWriter, event

__all__ = ["MessagesCall", "decode", "decode_count", "error", "model_info", "model_list"]

name = "messages"
engine_path = "/v1/chat/completions"


def decode(raw: bytes, target: Target) -> MessagesCall:
    """Raises BadRequest."""
    return MessagesCall(read_request(raw), target)


def decode_count(raw: bytes) -> dict[str, Any]:
    """A request to count tokens, as the hub request whose prompt is to be counted. Raises BadRequest."""
    return read_request(raw, counting=True).hub


class MessagesCall:
    """See ``base.Call``."""

    def __init__(self, request: Request, target: Target) -> None:
        self.hub = request.hub
        self.stream = request.stream
        self.ignored = request.ignored
        self.previous: str | None = None
        self.untrainable: str | None = None
        self._head = Head(
            id="msg_" + target.span_id.rpartition("_")[2],
            model=request.model,
            signature=target.span_id,
            thinking=request.thinking,
            stop_sequences=request.stop_sequences,
        )
        self._writer = EventWriter(self._head)

    def resume(self, messages: list[dict[str, Any]]) -> None:
        raise AssertionError("a request of the Messages API names no stored reply")

    def restart(self) -> None:
        self._writer = EventWriter(self._head)

    def to_hub(self, document: dict[str, Any]) -> dict[str, Any]:
        return document

    def whole(self, reply: dict[str, Any]) -> bytes:
        return whole(reply, self._head)

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        return self._writer.chunk(chunk)

    def end(self) -> bytes:
        return self._writer.end()

    def error_event(self, failure: Failure) -> bytes:
        return event(error(failure))
