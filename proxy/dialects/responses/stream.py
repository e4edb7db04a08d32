"""A streamed reply as the events of the Responses API. Pure.

Items follow one another: each is closed before the next begins, since harnesses apply what comes to the newest item.
So text behind a call, and fragments of a call while another one is incomplete, wait until the end; engines send calls
last and one after another. A call is closed only where another begins behind it, or at the end: from there on the
exchange holds everything back until the span is committed [I3].

Source of the format: OpenAI's API reference, "Streaming events".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy.dialects.responses import output
from proxy.dialects.responses.freeform import FreeText
from proxy.dialects.responses.items import item_id
from proxy.dialects.responses.output import Envelope
from proxy.dialects.responses.tools import Origin, Toolbox


@dataclass(slots=True)
class _Text:
    """A message or a reasoning item that is being written."""

    index: int
    kind: str
    """``msg`` or ``rs``."""
    pieces: list[str] = field(default_factory=list)
    logprobs: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True)
class _ToolCall:
    """A call, from its first fragment on."""

    number: int
    """Among the calls of the reply."""
    index: int = -1
    """Among its output items; -1 while none of it was sent."""
    id: str | None = None
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    sent: int = 0
    """How many of ``pieces`` were sent."""
    free_text: FreeText | None = None
    """Set for a custom tool."""
    closed: bool = False
    origin: Origin = field(default_factory=lambda: Origin(""))


class Events:
    """Writes the events of one reply."""

    def __init__(self, envelope: Envelope, toolbox: Toolbox, logprobs: bool) -> None:
        self._envelope, self._toolbox, self._asked_logprobs = envelope, toolbox, logprobs
        self._written: list[bytes] = []
        self._sequence = 0
        self._output: list[dict[str, Any]] = []
        self._open: _Text | _ToolCall | None = None
        self._calls: dict[int, _ToolCall] = {}
        self._spare_logprobs: list[dict[str, Any]] = []
        """The hub's, of tokens whose text has not come yet."""
        self._late: list[tuple[str, str]] = []
        """Kind and text of what came behind a call."""
        self._finish_reason: str | None = None
        self._last: dict[str, Any] = {}

    def feed(self, chunk: dict[str, Any]) -> bytes:
        """The events for one chunk of the engine."""
        self._begin(chunk)
        for choice in chunk.get("choices") or ():
            if choice.get("index", 0) == 0:
                self._choice(choice)
        return self._take()

    def end(self) -> bytes:
        """The events behind the last chunk."""
        self._begin({})
        status, reason = output.outcome(self._finish_reason)
        for call in self._calls.values():
            if not call.closed and call is not self._open:
                self._close("completed")
                self._open = call
        for kind, text in self._late:
            self._add_text(kind, text)
        if not (self._open or self._output):
            self._add_text("msg", "")
        self._close(status)
        final = self._envelope.build(status, self._output, self._last, reason=reason)
        self._write(f"response.{status}", {"response": final})
        return self._take()

    def fail(self, error: dict[str, Any]) -> bytes:
        """The end of a stream that broke off."""
        self._begin({})
        final = self._envelope.build("failed", self._output, self._last, error=error)
        self._write("response.failed", {"response": final})
        return self._take()

    def _begin(self, chunk: dict[str, Any]) -> None:
        if not self._sequence:
            begun = self._envelope.build("in_progress", [], {"model": chunk.get("model")})
            self._write("response.created", {"response": begun})
            self._write("response.in_progress", {"response": begun})
        self._last |= {name: chunk[name] for name in ("model", "usage") if chunk.get(name) is not None}

    def _choice(self, choice: dict[str, Any]) -> None:
        delta = choice.get("delta") or {}
        thinking, text, calls = output.thinking_of(delta), delta.get("content"), delta.get("tool_calls")
        if thinking or calls:
            self._spare_logprobs = []
        elif self._asked_logprobs and (entries := (choice.get("logprobs") or {}).get("content")):
            self._spare_logprobs += entries
        if thinking:
            self._text("rs", thinking)
        if text:
            self._text("msg", text)
        for fragment in calls or ():
            self._fragment(fragment)
        self._finish_reason = choice.get("finish_reason") or self._finish_reason

    def _text(self, kind: str, text: str) -> None:
        if isinstance(self._open, _ToolCall):
            self._late.append((kind, text))
        else:
            self._add_text(kind, text)

    def _add_text(self, kind: str, text: str) -> None:
        item = self._open
        if not isinstance(item, _Text) or item.kind != kind:
            self._close("completed")
            item = self._open = _Text(len(self._output), kind)
            name = self._item_id(item)
            begun = (
                output.message_item(name, None, [], "in_progress")
                if kind == "msg"
                else output.reasoning_item(name, "", "in_progress")
            )
            self._write("response.output_item.added", {"output_index": item.index, "item": begun})
            self._write("response.content_part.added", {**self._place(item), "part": _part(kind, "", [])})
        if not text:
            return
        item.pieces.append(text)
        if kind == "rs":
            self._write("response.reasoning_text.delta", {**self._place(item), "delta": text})
            return
        entries, self._spare_logprobs = output.text_logprobs(text, self._spare_logprobs)
        logprobs = list(map(output.logprob, entries))
        item.logprobs += logprobs
        self._write("response.output_text.delta", {**self._place(item), "delta": text, "logprobs": logprobs})

    def _fragment(self, fragment: dict[str, Any]) -> None:
        """A part of a call; it is sent at once unless another call is still being written."""
        index = fragment.get("index", 0)
        call = self._calls.get(index)
        if call is None:
            call = self._calls[index] = _ToolCall(len(self._calls))
        function = fragment.get("function") or {}
        call.id = call.id or fragment.get("id")
        call.name += function.get("name") or ""
        if arguments := function.get("arguments"):
            call.pieces.append(arguments)
        if self._open is not call:
            if isinstance(self._open, _ToolCall) and not _is_complete(self._open):
                return
            self._close("completed")
            self._open = call
        if call.pieces:  # so the name is whole
            self._send_call(call)

    def _send_call(self, call: _ToolCall) -> None:
        """Sends what was not sent yet."""
        if call.index < 0:
            call.index = len(self._output)
            call.id = call.id or output.call_id(self._envelope.key, call.number)
            call.origin = self._toolbox.origin(call.name)
            call.free_text = FreeText() if call.origin.custom else None
            begun = output.call_item(self._envelope.key, call.index, call.origin, call.id, "", "in_progress")
            self._write("response.output_item.added", {"output_index": call.index, "item": begun})
        for piece in call.pieces[call.sent :]:
            self._send_delta(call, call.free_text.feed(piece) if call.free_text else piece)
        call.sent = len(call.pieces)

    def _send_delta(self, call: _ToolCall, text: str) -> None:
        if text:
            event = "custom_tool_call_input" if call.origin.custom else "function_call_arguments"
            place = {"item_id": self._item_id(call), "output_index": call.index}
            self._write(f"response.{event}.delta", {**place, "delta": text})

    def _close(self, status: str) -> None:
        """Ends the item that is being written, if there is one."""
        item, self._open = self._open, None
        if item is None:
            return
        done = self._close_text(item, status) if isinstance(item, _Text) else self._close_call(item, status)
        self._write("response.output_item.done", {"output_index": item.index, "item": done})
        self._output.append(done)

    def _close_text(self, item: _Text, status: str) -> dict[str, Any]:
        text, place = "".join(item.pieces), self._place(item)
        if item.kind == "rs":
            self._write("response.reasoning_text.done", {**place, "text": text})
            done = output.reasoning_item(self._item_id(item), text, status)
        else:
            self._write("response.output_text.done", {**place, "text": text, "logprobs": item.logprobs})
            done = output.message_item(self._item_id(item), text, item.logprobs, status)
        part = _part(item.kind, text, item.logprobs)
        self._write("response.content_part.done", {**place, "part": part})
        return done

    def _close_call(self, call: _ToolCall, status: str) -> dict[str, Any]:
        self._send_call(call)
        call.closed = True
        if call.free_text:
            self._send_delta(call, call.free_text.finish())
        written = "".join(call.pieces)
        done = output.call_item(self._envelope.key, call.index, call.origin, call.id or "", written, status)
        place = {"item_id": done["id"], "output_index": call.index}
        if call.origin.custom:
            self._write("response.custom_tool_call_input.done", {**place, "input": done["input"]})
        else:
            named = {"name": call.origin.name, "arguments": written}
            self._write("response.function_call_arguments.done", {**place, **named})
        return done

    def _item_id(self, item: _Text | _ToolCall) -> str:
        if isinstance(item, _Text):
            return item_id(item.kind, self._envelope.key, item.index)
        return item_id("ctc" if item.origin.custom else "fc", self._envelope.key, item.index)

    def _place(self, item: _Text) -> dict[str, Any]:
        return {"item_id": self._item_id(item), "output_index": item.index, "content_index": 0}

    def _write(self, kind: str, fields: dict[str, Any]) -> None:
        payload = orjson.dumps({"type": kind, "sequence_number": self._sequence, **fields})
        self._sequence += 1
        self._written.append(b"event: %b\ndata: %b\n\n" % (kind.encode(), payload))

    def _take(self) -> bytes:
        events = b"".join(self._written)
        self._written.clear()
        return events


def _part(kind: str, text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return output.text_part(text, logprobs) if kind == "msg" else {"type": "reasoning_text", "text": text}


def _is_complete(call: _ToolCall) -> bool:
    """Whether nothing more can come for it."""
    try:
        orjson.loads("".join(call.pieces))
    except ValueError:
        return False
    return True
