"""One request of the Responses API, and the writing of its reply. Pure.

A request may name what it does not hold: the response that it continues, and single items of earlier replies. The route
looks these up and hands them in (``complete_items``, then ``resume``).
"""

from __future__ import annotations

from typing import Any

import orjson

from proxy.dialects.base import BadRequest, Failure, Target
from proxy.dialects.responses import failures, output
from proxy.dialects.responses.items import Conversation, span_key
from proxy.dialects.responses.reading import text_of
from proxy.dialects.responses.request import Request
from proxy.dialects.responses.stream import Events


class ResponsesCall:
    """See ``base.Call``."""

    def __init__(self, request: Request, target: Target) -> None:
        self.stream = request.hub.get("stream") is True
        self.previous = request.previous
        self.untrainable: str | None = None
        self.hub = request.hub
        self.ignored = request.ignored
        self.stored = request.fields.get("store") is not False
        """Whether later requests may name this one's response."""
        self.references: dict[str, str] = {}
        """Items of earlier replies that the request names: id -> id of the span that holds it."""
        self._request = request
        self._unanswered: list[tuple[str, str]] = []
        self._key = target.span_id.removeprefix(output.SPAN)
        self._envelope = output.Envelope(request.fields, self._key, target.created_at)
        self.restart()
        self._find_references()
        if not self.references:
            self._read_items()

    def restart(self) -> None:
        """Forgets what was written of a reply that broke off before any of it was sent."""
        self._events = Events(self._envelope, self._request.toolbox, self._request.logprobs)

    @property
    def instructions(self) -> list[dict[str, Any]]:
        """The system message that the request's own instructions are; no later request takes it over."""
        text = self._request.fields.get("instructions")
        return [{"role": "system", "content": text}] if text else []

    def complete_items(self, found: dict[str, dict[str, Any]]) -> None:
        """Puts the items that ``references`` asks for in their places. Raises BadRequest where one is missing."""
        items = self._request.items
        for index, item in enumerate(items):
            if _is_reference(item):
                if item["id"] not in found:
                    raise _no_item(item["id"], index)
                items[index] = found[item["id"]]
        self.references = {}
        self._read_items()

    def resume(self, messages: list[dict[str, Any]]) -> None:
        """See ``base.Call``; behind the instructions. Raises BadRequest for an output whose call is nowhere."""
        calls = {call["id"] for message in messages for call in message.get("tool_calls") or ()}
        self._check_answers(calls)
        own = len(self.instructions)
        self.hub["messages"][own:own] = messages

    def to_hub(self, document: dict[str, Any]) -> dict[str, Any]:
        return document

    def whole(self, reply: dict[str, Any]) -> bytes:
        choice = reply["choices"][0]
        status, reason = output.outcome(choice.get("finish_reason"))
        entries = (choice.get("logprobs") or {}).get("content") if self._request.logprobs else None
        items = self.output_items(choice.get("message") or {}, entries)
        items[-1]["status"] = status
        return orjson.dumps(self._envelope.build(status, items, reply, reason=reason))

    def output_items(self, message: dict[str, Any], logprobs: Any = None) -> list[dict[str, Any]]:
        """The items that a reply's message is to the caller."""
        return output.whole_output(message, self._key, self._request.toolbox, logprobs)

    def as_history(self, message: dict[str, Any]) -> dict[str, Any]:
        """A reply's message as it stands in the history of the requests that follow, arguments as they were written."""
        calls = [
            {
                "id": call.get("id") or output.call_id(self._key, number),
                "type": "function",
                "function": {name: call["function"].get(name) or "" for name in ("name", "arguments")},
            }
            for number, call in enumerate(message.get("tool_calls") or ())
        ]
        history = {"role": "assistant", "content": message.get("content") or (None if calls else "")}
        if thinking := output.thinking_of(message):
            history["reasoning_content"] = thinking
        if calls:
            history["tool_calls"] = calls
        return history

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        return self._events.feed(chunk)

    def end(self) -> bytes:
        return self._events.end()

    def error_event(self, failure: Failure) -> bytes:
        return self._events.fail(failures.response_error(failure))

    def _find_references(self) -> None:
        for index, item in enumerate(self._request.items):
            if _is_reference(item):
                identifier = text_of(item, "id", f"input[{index}]")
                key = span_key(identifier)
                if key is None:
                    raise _no_item(identifier, index)
                self.references[identifier] = output.SPAN + key

    def _read_items(self) -> None:
        conversation = Conversation()
        conversation.read(self._request.items)
        self.ignored += conversation.ignored
        self._unanswered = conversation.unanswered
        self.hub["messages"] = [*self.instructions, *conversation.messages]
        if self.previous is None:
            self._check_answers(set())
            if not conversation.messages:
                raise BadRequest("'input' holds no message.", "input")

    def _check_answers(self, calls: set[Any]) -> None:
        for identifier, where in self._unanswered:
            if identifier not in calls:
                message = f"No tool call found for function call output with call_id {identifier}."
                raise BadRequest(message, f"{where}.call_id")


def _is_reference(item: dict[str, Any]) -> bool:
    kind = item.get("type")
    return kind == "item_reference" or (kind is None and "role" not in item and "id" in item)


def _no_item(identifier: str, index: int) -> BadRequest:
    return BadRequest(f"Item with id '{identifier}' not found.", f"input[{index}].id", code="item_not_found")
