"""The hub: requests and replies in chat-completions terms, which every dialect translates to and from.

The engine is always asked for more than the caller asked for (token ids, logprobs, usage); dialects leave out of their
replies what their caller did not ask for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from proxy.dialects.base import BadRequest


def parse_body(raw: bytes) -> dict[str, Any]:
    """A request body as an object. Raises BadRequest."""
    try:
        request = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}.") from None
    if not isinstance(request, dict):
        raise BadRequest("The request body must be a JSON object.")
    return request


def check_types(request: Mapping[str, Any], *fields: tuple[str, type, str]) -> None:
    """Each field, where it is there, has its type (``words`` for the message). Raises BadRequest."""
    for name, kind, words in fields:
        value = request.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise BadRequest(f"'{name}' must be {words}.", name)


def check_messages(messages: Any, name: str = "messages") -> list[dict[str, Any]]:
    """A non-empty array of objects. Raises BadRequest."""
    if not isinstance(messages, list) or not messages:
        raise BadRequest(f"'{name}' must be a non-empty array of messages.", name)
    if not all(isinstance(message, dict) for message in messages):
        raise BadRequest(f"Each of '{name}' must be an object.", name)
    return messages


PROMPT_FIELDS = (
    "messages",
    "tools",
    "tool_choice",
    "documents",
    "chat_template",
    "chat_template_kwargs",
    "reasoning_effort",
    "add_generation_prompt",
    "continue_final_message",
    "add_special_tokens",
)
"""The fields of a chat request that its prompt is made of; an engine may refuse to render over any of the others."""


def prompt_of(request: Mapping[str, Any]) -> dict[str, Any]:
    """The request, as far as its prompt is made of it."""
    return {name: request[name] for name in PROMPT_FIELDS if name in request}


def add_capture(body: dict[str, Any]) -> None:
    """Asks the engine for what a span records. Changes ``body``."""
    body["return_token_ids"] = True
    if "include_reasoning" in body:  # without reasoning vLLM leaves the ids of all tokens out
        body["include_reasoning"] = True
    if "messages" not in body:  # text completions count logprobs; 0 is the sampled token's alone
        body["logprobs"] = body.get("logprobs") or 0
    else:
        body["logprobs"] = True
    if body.get("stream") is True:
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}


_SAID = ("content", "reasoning", "reasoning_content")


class MessageBuilder:
    """Puts the deltas of one streamed choice together into the message that a whole reply would have held."""

    __slots__ = ("_calls", "_texts", "message")

    def __init__(self) -> None:
        self.message: dict[str, Any] = {"role": "assistant", "content": None}
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, delta: Mapping[str, Any]) -> bool:
        """Returns True if the delta completed a tool call, or something began after one: its caller may act on it [I3]."""
        completes = bool(self._calls) and any(
            isinstance(delta.get(name), str) and delta[name] for name in _SAID
        )
        for name, value in delta.items():
            if value is None:
                continue
            if name in self._texts:
                self._texts[name].append(value)
            elif name == "tool_calls":
                for call in value:
                    completes = self._add_call(call) or completes
            elif name == "role" or not isinstance(value, str):
                self.message[name] = value
            else:
                self._texts[name] = [value]
        return completes

    def build(self) -> dict[str, Any]:
        message = dict(self.message)
        for name, pieces in self._texts.items():
            message[name] = "".join(pieces)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
            message["content"] = message["content"] or None
        return message

    def _add_call(self, delta: Mapping[str, Any]) -> bool:
        index = delta.get("index", 0)
        begins_another = bool(self._calls) and index not in self._calls
        call = self._calls.setdefault(
            index, {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        for name in ("id", "type"):
            if delta.get(name):
                call[name] = delta[name]
        function = delta.get("function") or {}
        for name in ("name", "arguments"):
            call["function"][name] += function.get(name) or ""
        return begins_another or (
            (function.get("arguments") or "").rstrip().endswith("}")
            and _is_json(call["function"]["arguments"])
        )


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def loads(payload: bytes) -> Any:
    """JSON from an engine. Python's own parser takes over where NaN stands for a number, as some engines write it."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return json.loads(payload)
