"""The response object and its output items. Pure.

Source of the format: OpenAI's API reference, "The response object"; the official Python client's types. Ids of items
are made from the span's, so that a history that echoes them can be put together again (``items``), and so that a
streamed reply has the ids of a whole one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from proxy.dialects.responses import freeform, reasoning
from proxy.dialects.responses.items import item_id
from proxy.dialects.responses.tools import Origin, Toolbox

RESPONSE, SPAN = "resp_", "spn_"
_RETURNED = (
    "metadata",
    "previous_response_id",
    "prompt_cache_key",
    "safety_identifier",
    "user",
    "max_output_tokens",
)
"""Fields of a request that its response repeats, null where it has none."""
_DEFAULTS: dict[str, Any] = {
    "metadata": {},
    "parallel_tool_calls": True,
    "temperature": 1.0,
    "tool_choice": "auto",
    "top_p": 1.0,
    "store": True,
    "truncation": "disabled",
    "top_logprobs": 0,
}
"""Those that it repeats with the API's default."""


class Envelope:
    """The response object around the output of one call."""

    def __init__(self, request: Mapping[str, Any], key: str, created_at: float) -> None:
        self.key = key
        self._model = request.get("model")
        text, effort = request.get("text") or {}, request.get("reasoning") or {}
        fields: dict[str, Any] = {
            "id": RESPONSE + key,
            "object": "response",
            "created_at": int(created_at),
            "background": False,
            "instructions": request.get("instructions"),
            "max_tool_calls": None,
            "service_tier": "default",
            "reasoning": {"effort": effort.get("effort"), "summary": effort.get("summary")},
            "text": {
                "format": text.get("format") or {"type": "text"},
                "verbosity": text.get("verbosity") or "medium",
            },
            "tools": request.get("tools") or [],
            **{name: request.get(name) for name in _RETURNED},
            **{
                name: default if (value := request.get(name)) is None else value
                for name, default in _DEFAULTS.items()
            },
        }
        # Written once, though a stream repeats it three times: harnesses send 60 KB of tools.
        self._written = orjson.dumps(fields)[:-1] + b","

    def build(
        self,
        status: str,
        output: list[dict[str, Any]],
        reply: Mapping[str, Any],
        *,
        reason: str | None = None,
        error: dict[str, Any] | None = None,
    ) -> orjson.Fragment:
        """``reply``: the engine's reply or chunk, for its model and usage. ``reason``: why it is incomplete."""
        fields = {
            "model": self._model or reply.get("model"),
            "status": status,
            "error": error,
            "incomplete_details": {"reason": reason} if reason else None,
            "output": output,
            "usage": usage(reply.get("usage")),
        }
        return orjson.Fragment(self._written + orjson.dumps(fields)[1:])


def outcome(finish_reason: str | None) -> tuple[str, str | None]:
    """Status of the response, and why it is incomplete, for the hub's finish reason."""
    reasons = {"length": "max_output_tokens", "content_filter": "content_filter"}
    reason = reasons.get(finish_reason or "")
    return ("incomplete", reason) if reason else ("completed", None)


def whole_output(
    message: Mapping[str, Any], key: str, toolbox: Toolbox, logprobs: Any
) -> list[dict[str, Any]]:
    """The items of a whole reply, all completed. ``logprobs``: the hub's entries, where the caller asked for them."""
    items: list[dict[str, Any]] = []
    thinking, text, calls = (
        thinking_of(message),
        message.get("content") or "",
        message.get("tool_calls") or [],
    )
    if thinking:
        items.append(reasoning_item(item_id("rs", key, 0), thinking))
    if text or not (thinking or calls):
        found, _ = text_logprobs(text, logprobs or [])
        items.append(message_item(item_id("msg", key, len(items)), text, list(map(logprob, found))))
    for number, call in enumerate(calls):
        function = call.get("function") or {}
        items.append(
            call_item(
                key,
                len(items),
                toolbox.origin(function.get("name") or ""),
                call.get("id") or call_id(key, number),
                function.get("arguments") or "",
            )
        )
    return items


def thinking_of(message: Mapping[str, Any]) -> str:
    """The text of thinking in a message or delta: vLLM 0.32 names it ``reasoning``, older ones otherwise."""
    return message.get("reasoning") or message.get("reasoning_content") or ""


def call_id(key: str, number: int) -> str:
    """For a call that the engine gave no id."""
    return f"call_{key}_{number}"


def reasoning_item(identifier: str, text: str, status: str = "completed") -> dict[str, Any]:
    return {
        "id": identifier,
        "type": "reasoning",
        "status": status,
        "summary": [],
        "content": [{"type": "reasoning_text", "text": text}] if text else [],
        "encrypted_content": reasoning.seal(text) if text else None,
    }


def message_item(
    identifier: str, text: str | None, logprobs: list[dict[str, Any]], status: str = "completed"
) -> dict[str, Any]:
    """``text`` None: a message that has just begun, without a part."""
    return {
        "id": identifier,
        "type": "message",
        "status": status,
        "role": "assistant",
        "content": [] if text is None else [text_part(text, logprobs)],
    }


def text_part(text: str, logprobs: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}


def call_item(
    key: str, index: int, origin: Origin, identifier: str, arguments: str, status: str = "completed"
) -> dict[str, Any]:
    """A call of a function or of a custom tool. ``arguments``: as the model wrote them."""
    item: dict[str, Any] = {
        "id": item_id("ctc" if origin.custom else "fc", key, index),
        "type": "custom_tool_call" if origin.custom else "function_call",
        "status": status,
        "call_id": identifier,
        "name": origin.name,
    }
    if origin.namespace:
        item["namespace"] = origin.namespace
    if origin.custom:
        item["input"] = freeform.whole_text(arguments)
    else:
        item["arguments"] = arguments
    return item


def usage(counts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The hub's token counts under the names of the Responses API."""
    if counts is None:
        return None
    prompt, sampled = counts.get("prompt_tokens_details") or {}, counts.get("completion_tokens_details") or {}
    numbers = {
        "input_tokens": _count(counts.get("prompt_tokens")),
        "output_tokens": _count(counts.get("completion_tokens")),
    }
    return {
        **numbers,
        "input_tokens_details": {
            "cached_tokens": _count(prompt.get("cached_tokens")),
            "cache_write_tokens": 0,
        },
        "output_tokens_details": {"reasoning_tokens": _count(sampled.get("reasoning_tokens"))},
        "total_tokens": sum(numbers.values()),
    }


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The hub's entry for a token in the shape of an ``output_text`` part."""
    others = entry.get("top_logprobs") or []
    return {**_token(entry), "top_logprobs": [_token(other) for other in others]}


def _token(entry: Mapping[str, Any]) -> dict[str, Any]:
    token = entry.get("token") or ""
    octets = entry.get("bytes")
    return {
        "token": token,
        "bytes": list(token.encode("utf-8", "replace")) if octets is None else octets,
        "logprob": entry.get("logprob"),
    }


def text_logprobs(
    text: str, entries: list[dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The hub's entries of the tokens that ``text`` consists of, and those behind them. ``text`` is the last that the
    tokens spell: those of thinking stand before it, those of an end of turn or of calls behind. All entries where the
    tokens do not spell it."""
    tokens = [bytes(_token(entry)["bytes"]) for entry in entries]
    wanted = text.encode("utf-8", "replace")
    begin = b"".join(tokens).rfind(wanted)
    if begin < 0:
        return entries, []
    first, last, at = len(tokens), 0, 0
    for index, token in enumerate(tokens):
        end = at + len(token)
        if token and at < begin + len(wanted) and end > begin:
            first, last = min(first, index), index + 1
        at = end
    return entries[first:last], entries[last:]
