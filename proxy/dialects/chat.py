"""The chat-completions dialect: reading a request, cleaning a reply, writing an error. Pure.

The engine is always asked for more than the caller asked for (token ids, logprobs, usage); ``Asked`` remembers what
the caller did ask for, and ``clean_reply`` and ``clean_chunk`` take the rest out again, so that a harness sees what a
plain OpenAI-compatible server would have sent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

_EXTRAS = frozenset(
    {
        "prompt_logprobs",
        "prompt_token_ids",
        "prompt_text",
        "kv_transfer_params",
        "ec_transfer_params",
        "metrics",
    }
)
_CHOICE_EXTRAS = frozenset({"token_ids", "stop_reason", "routed_experts"})
"""What vLLM adds to OpenAI's format."""
_WHERE_ASKED = {
    "prompt_token_ids": "token_ids",
    "prompt_logprobs": "prompt_logprobs",
    "prompt_text": "prompt_text",
}
"""Extra -> the field of ``Asked`` that says whether the caller wants it; the others nobody can ask for."""
_NOTHING = (None, "", [])


class BadRequest(Exception):
    """The body is not a chat-completions request. ``param`` names the field at fault."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller asked to be sent, beside the answer itself."""

    model: Any
    """The name that it called the model; goes back into the replies."""
    stream: bool
    logprobs: bool
    token_ids: bool
    usage: bool
    """Streams only: the chunk with the token counts."""
    prompt_logprobs: bool
    prompt_text: bool


def decode_request(raw: bytes) -> dict[str, Any]:
    """The body as an object, with the types checked that the proxy itself relies on; raises ``BadRequest``."""
    try:
        request = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"The request body is not valid JSON: {error}.") from None
    if not isinstance(request, dict):
        raise BadRequest("The request body must be a JSON object.")
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages:
        raise BadRequest("'messages' must be a non-empty array of messages.", "messages")
    if not all(isinstance(message, dict) for message in messages):
        raise BadRequest("Each of 'messages' must be an object.", "messages")
    for name, kind, words in (
        ("model", str, "a string"),
        ("stream", bool, "a boolean"),
        ("n", int, "an integer"),
        ("tools", list, "an array"),
        ("stream_options", dict, "an object"),
    ):
        value = request.get(name)
        if value is not None and (not isinstance(value, kind) or (kind is int and isinstance(value, bool))):
            raise BadRequest(f"'{name}' must be {words}.", name)
    return request


def read_asked(request: Mapping[str, Any]) -> Asked:
    return Asked(
        model=request.get("model"),
        stream=request.get("stream") is True,
        logprobs=bool(request.get("logprobs")),
        token_ids=bool(request.get("return_token_ids")),
        usage=bool((request.get("stream_options") or {}).get("include_usage")),
        prompt_logprobs=request.get("prompt_logprobs") is not None,
        prompt_text=bool(request.get("return_prompt_text")),
    )


def add_capture(body: dict[str, Any]) -> None:
    """Asks the engine for what a span records. Changes ``body``."""
    body["return_token_ids"] = True
    body["logprobs"] = True
    if body.get("stream") is True:
        body["stream_options"] = {**(body.get("stream_options") or {}), "include_usage": True}


def clean_reply(reply: dict[str, Any], asked: Asked) -> None:
    """Takes out of a whole reply what the caller did not ask for. Changes ``reply``."""
    _clean_top(reply, asked)
    for choice in reply.get("choices") or ():
        _clean_choice(choice, asked)


def clean_chunk(chunk: dict[str, Any], asked: Asked) -> bool:
    """The same for a chunk of a stream. Returns False where nothing is left to send. Changes ``chunk``."""
    had_usage = chunk.get("usage") is not None
    if not asked.usage:
        chunk.pop("usage", None)
    _clean_top(chunk, asked)
    choices = chunk.get("choices")
    if not choices:
        return asked.usage or not had_usage
    for choice in choices:
        _clean_choice(choice, asked)
    if not any(map(_is_empty, choices)):
        return True
    chunk["choices"] = [choice for choice in choices if not _is_empty(choice)]
    return bool(chunk["choices"])


def _clean_top(reply: dict[str, Any], asked: Asked) -> None:
    if asked.model is not None and "model" in reply:
        reply["model"] = asked.model
    for name in reply.keys() & _EXTRAS:  # as a rule there are none, and this costs next to nothing
        if not getattr(asked, _WHERE_ASKED.get(name, ""), False):
            del reply[name]


def _clean_choice(choice: dict[str, Any], asked: Asked) -> None:
    if not asked.logprobs and choice.get("logprobs") is not None:
        choice["logprobs"] = None
    for name in choice.keys() & _CHOICE_EXTRAS:
        if not (name == "token_ids" and asked.token_ids):
            del choice[name]


def _is_empty(choice: dict[str, Any]) -> bool:
    """True for the choice of a chunk that carried nothing but tokens that a tool parser withheld."""
    if delta := choice.get("delta"):
        for value in delta.values():
            if value not in _NOTHING:
                return False
    return not (
        choice.get("finish_reason") is not None
        or choice.get("logprobs") is not None
        or choice.get("token_ids")
    )


class MessageBuilder:
    """Puts the deltas of one streamed choice together into the message that a whole reply would have held."""

    __slots__ = ("_calls", "_texts", "message")

    def __init__(self) -> None:
        self.message: dict[str, Any] = {"role": "assistant", "content": None}
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, delta: Mapping[str, Any]) -> None:
        for name, value in delta.items():
            if value is None:
                continue
            if name in self._texts:
                self._texts[name].append(value)
            elif name == "tool_calls":
                for call in value:
                    self._add_call(call)
            elif name == "role" or not isinstance(value, str):
                self.message[name] = value
            else:
                self._texts[name] = [value]

    def build(self) -> dict[str, Any]:
        message = dict(self.message)
        for name, pieces in self._texts.items():
            message[name] = "".join(pieces)
        if self._calls:
            message["tool_calls"] = [self._calls[index] for index in sorted(self._calls)]
            message["content"] = message["content"] or None
        return message

    def _add_call(self, delta: Mapping[str, Any]) -> None:
        call = self._calls.setdefault(
            delta.get("index", 0), {"id": None, "type": "function", "function": {"name": "", "arguments": ""}}
        )
        for name in ("id", "type"):
            if delta.get(name):
                call[name] = delta[name]
        for name in ("name", "arguments"):
            call["function"][name] += (delta.get("function") or {}).get(name) or ""


def loads(payload: bytes) -> Any:
    """JSON from an engine. Python's own parser takes over where NaN stands for a number, as some engines write it."""
    try:
        return orjson.loads(payload)
    except orjson.JSONDecodeError:
        return json.loads(payload)


def error_body(
    message: str, *, kind: str, code: str | None = None, param: str | None = None
) -> dict[str, Any]:
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


def error_kind(status: int) -> str:
    """OpenAI's name for the kind of error that a status stands for."""
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    return kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
