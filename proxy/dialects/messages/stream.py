"""A streamed reply as the events of the Messages API. Pure.

Blocks come one after the other: what the engine says of another kind, or of another tool call, ends the block before.
The fragments of text, thoughts and arguments are the engine's own. What says that the reply is at its end needs the
token counts, which come last, so it is written at the end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from proxy.dialects.messages.reply import Head, stop_of, thoughts_of, usage_of


def event(document: dict[str, Any]) -> bytes:
    """One event, named by the document's type."""
    return b"event: " + document["type"].encode() + b"\ndata: " + orjson.dumps(document) + b"\n\n"


class EventWriter:
    """Writes the events of one reply."""

    def __init__(self, head: Head) -> None:
        self._head = head
        self._started = False
        self._open: str | int | None = None
        """The block being written: ``thinking``, ``text``, or the index of a tool call."""
        self._block = -1
        self._calls: dict[int, list[str]] = {}
        self._finish: Any = None
        self._stop: Any = None
        self._prompt_tokens: Any = None
        self._sampled = 0
        self._usage: Mapping[str, Any] = {}
        self._events: list[bytes] = []

    def chunk(self, chunk: Mapping[str, Any]) -> bytes:
        """Raises TypeError where the engine goes back to a tool call that had ended."""
        self._usage = chunk.get("usage") or self._usage
        if not self._started:
            self._start(chunk)
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                self._sampled += len(choice.get("token_ids") or ())
                self._add(choice.get("delta") or {})
                if choice.get("finish_reason") is not None:
                    self._close()
                    self._finish, self._stop = choice["finish_reason"], choice.get("stop_reason")
        return self._take()

    def end(self) -> bytes:
        self._close()
        reason, sequence = stop_of(
            self._finish, self._stop, map("".join, self._calls.values()), self._head.stop_sequences
        )
        usage = usage_of(
            self._usage.get("prompt_tokens", self._prompt_tokens),
            self._usage.get("completion_tokens", self._sampled),
        )
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        self._emit({"type": "message_delta", "delta": delta, "usage": usage})
        self._emit({"type": "message_stop"})
        return self._take()

    def _start(self, chunk: Mapping[str, Any]) -> None:
        self._started = True
        ids = chunk.get("prompt_token_ids")
        self._prompt_tokens = len(ids) if ids else self._usage.get("prompt_tokens")
        message = self._head.message([], usage_of(self._prompt_tokens, 0))
        self._emit({"type": "message_start", "message": message})

    def _add(self, delta: Mapping[str, Any]) -> None:
        if self._head.thinking and (thoughts := thoughts_of(delta)):
            self._switch("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            self._delta({"type": "thinking_delta", "thinking": thoughts})
        if text := delta.get("content"):
            self._switch("text", {"type": "text", "text": ""})
            self._delta({"type": "text_delta", "text": text})
        for call in delta.get("tool_calls") or ():
            self._add_call(call)

    def _add_call(self, call: Mapping[str, Any]) -> None:
        index, function = call.get("index", 0), call.get("function") or {}
        if index not in self._calls:
            self._calls[index] = []
            block = {
                "type": "tool_use",
                "id": self._head.call_id(call.get("id"), index),
                "name": function.get("name") or "",
                "input": {},
            }
            self._switch(index, block)
        elif self._open != index:
            raise TypeError(f"tool call {index} goes on after it had ended")
        if fragment := function.get("arguments"):
            self._calls[index].append(fragment)
            self._delta({"type": "input_json_delta", "partial_json": fragment})

    def _switch(self, kind: str | int, block: dict[str, Any]) -> None:
        if self._open == kind:
            return
        self._close()
        self._open = kind
        self._block += 1
        self._emit({"type": "content_block_start", "index": self._block, "content_block": block})

    def _close(self) -> None:
        if self._open is None:
            return
        if self._open == "thinking":
            self._delta({"type": "signature_delta", "signature": self._head.signature})
        self._emit({"type": "content_block_stop", "index": self._block})
        self._open = None

    def _delta(self, delta: dict[str, Any]) -> None:
        self._emit({"type": "content_block_delta", "index": self._block, "delta": delta})

    def _emit(self, document: dict[str, Any]) -> None:
        self._events.append(event(document))

    def _take(self) -> bytes:
        events, self._events = b"".join(self._events), []
        return events
