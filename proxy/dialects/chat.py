"""Chat completions: the dialect that the hub itself speaks, so replies pass by nearly as they come. Pure.

Source of the format: OpenAI's API reference, "Chat Completions". What vLLM adds to it, and what was asked of the engine
only for the span's sake, is taken out again, so that a harness sees what a plain OpenAI-compatible server sends.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from proxy import hub, sse
from proxy.dialects.base import BadRequest, Failure, Target

__all__ = ["BadRequest", "ChatCall", "decode", "error"]

name = "chat"
engine_path = "/v1/chat/completions"

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
DONE = sse.encode(b"[DONE]")


@dataclass(frozen=True, slots=True)
class Asked:
    """What the caller asked to be sent, beside the answer itself."""

    model: Any
    """The name that it called the model; goes back into the replies."""
    logprobs: bool
    token_ids: bool
    usage: bool
    """Streams only: the chunk with the token counts."""
    reasoning: bool
    prompt_logprobs: bool
    prompt_text: bool


def decode(raw: bytes, target: Target) -> ChatCall:
    """Checks the types that the proxy itself relies on; the engine checks the rest. Raises BadRequest."""
    request = hub.parse_body(raw)
    hub.check_messages(request.get("messages"))
    hub.check_types(
        request,
        ("model", str, "a string"),
        ("stream", bool, "a boolean"),
        ("n", int, "an integer"),
        ("tools", list, "an array"),
        ("stream_options", dict, "an object"),
    )
    return ChatCall(request)


def read_asked(request: Mapping[str, Any]) -> Asked:
    return Asked(
        model=request.get("model"),
        logprobs=bool(request.get("logprobs")),
        token_ids=bool(request.get("return_token_ids")),
        usage=bool((request.get("stream_options") or {}).get("include_usage")),
        reasoning=request.get("include_reasoning") in (None, True),
        prompt_logprobs=request.get("prompt_logprobs") is not None,
        prompt_text=bool(request.get("return_prompt_text")),
    )


class ChatCall:
    """See ``base.Call``."""

    def __init__(self, request: dict[str, Any]) -> None:
        self.hub = request
        self.stream = request.get("stream") is True
        self.ignored: list[str] = []
        self.previous: str | None = None
        self.untrainable: str | None = None
        self._asked = read_asked(request)

    def resume(self, messages: list[dict[str, Any]]) -> None:
        raise AssertionError("a chat completion names no stored reply")

    def restart(self) -> None:
        """Chunks are written one by one: there is nothing to forget."""

    def to_hub(self, document: dict[str, Any]) -> dict[str, Any]:
        return document

    def whole(self, reply: dict[str, Any]) -> bytes:
        clean_reply(reply, self._asked)
        return orjson.dumps(reply)

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        return sse.encode(orjson.dumps(chunk)) if clean_chunk(chunk, self._asked) else b""

    def end(self) -> bytes:
        return DONE

    def error_event(self, failure: Failure) -> bytes:
        return sse.encode(orjson.dumps(error(failure)))


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
        if delta := choice.get("delta"):
            _begin_calls(delta)
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
    if not asked.reasoning and (said := choice.get("delta") or choice.get("message")):
        for name in ("reasoning", "reasoning_content"):
            said.pop(name, None)
    for name in choice.keys() & _CHOICE_EXTRAS:
        if not (name == "token_ids" and asked.token_ids):
            del choice[name]


def _begin_calls(delta: dict[str, Any]) -> None:
    """Gives the delta that names a tool the empty ``arguments`` that OpenAI's has and vLLM's has not: qwen-agent adds to
    them unasked."""
    for call in delta.get("tool_calls") or ():
        function = call.get("function")
        if function and function.get("name") and function.get("arguments") is None:
            function["arguments"] = ""


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


def error(failure: Failure) -> dict[str, Any]:
    """OpenAI's shape; the engine's own document where it sent one."""
    if failure.engine_error is not None:
        return failure.engine_error
    return {
        "error": {
            "message": failure.message,
            "type": error_kind(failure.status),
            "param": failure.param,
            "code": failure.code,
        }
    }


def error_kind(status: int) -> str:
    """OpenAI's name for the kind of error that a status stands for."""
    kinds = {
        401: "authentication_error",
        403: "permission_error",
        404: "not_found_error",
        429: "rate_limit_error",
    }
    return kinds.get(status, "invalid_request_error" if status < 500 else "server_error")
