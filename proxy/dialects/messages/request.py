"""A request of the Messages API as a hub request. Pure.

Fields that are not read here are ignored and recorded by name, but for two of vLLM's that pass as they come.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from proxy import hub
from proxy.dialects.messages.history import History, read_system
from proxy.dialects.messages.reading import Ignored, optional, require, wrong
from proxy.dialects.messages.tools import read_choice, read_tools

ENGINE_FIELDS = ("chat_template_kwargs", "structured_outputs")
"""vLLM's own, for callers that know that one is behind the proxy."""
_SAMPLING = {"temperature": (int, float), "top_p": (int, float), "top_k": (int,)}
_READ = frozenset(
    {
        "model",
        "messages",
        "system",
        "max_tokens",
        "stop_sequences",
        "stream",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "output_format",
        *_SAMPLING,
        *ENGINE_FIELDS,
    }
)
_EFFORTS = ("low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class Request:
    """What a body says."""

    hub: dict[str, Any]
    model: str
    stream: bool
    stop_sequences: tuple[str, ...]
    thinking: bool
    """Whether the caller wants to see what the model thinks."""
    ignored: list[str]


def read_request(raw: bytes, *, counting: bool = False) -> Request:
    """``counting``: a request to count tokens, which has no ``max_tokens``. Raises BadRequest."""
    body = hub.parse_body(raw)
    ignored = Ignored()
    for name in body.keys() - _READ:
        if body[name] is not None:
            ignored.add(name)
    model = body.get("model")
    if not isinstance(model, str):
        raise wrong("model", "field required" if model is None else "must be a string")
    history = History(ignored)
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise wrong("messages", "must be a non-empty array of messages")
    for index, message in enumerate(messages):
        if not isinstance(message, dict):
            raise wrong(f"messages.{index}", "must be an object")
        history.add(message, f"messages.{index}")
    found, unfinished = history.finish()
    request: dict[str, Any] = {"messages": [*read_system(body.get("system"), ignored), *found]}
    if unfinished:  # the reply goes on with the assistant's last message
        request |= {"continue_final_message": True, "add_generation_prompt": False}
    if tools := read_tools(body.get("tools"), history.added_tools, ignored):
        request["tools"] = tools
    request |= read_choice(body.get("tool_choice"), tools, ignored)
    stop = _read_sampling(body, request, counting)
    thinking = _read_thinking(body, request, ignored)
    for name in ENGINE_FIELDS:
        if (value := optional(body, name, dict, "an object", "")) is not None:
            request[name] = {**request.get(name, {}), **value}
    if stream := optional(body, "stream", bool, "a boolean", "") or False:
        request["stream"] = True
    return Request(request, model, stream, stop, thinking, ignored.names())


def _read_sampling(body: dict[str, Any], request: dict[str, Any], counting: bool) -> tuple[str, ...]:
    """Limits and sampling parameters; returns the stop sequences."""
    limit = body.get("max_tokens")
    if limit is not None or not counting:
        if not isinstance(limit, int) or isinstance(limit, bool) or limit < 1:
            raise wrong(
                "max_tokens", "field required" if limit is None else "must be an integer of 1 or more"
            )
        request["max_tokens"] = limit
    for name, kinds in _SAMPLING.items():
        if (value := body.get(name)) is not None:
            if not isinstance(value, kinds) or isinstance(value, bool):
                raise wrong(name, "must be an integer" if kinds == (int,) else "must be a number")
            request[name] = value
    stop = body.get("stop_sequences")
    if stop is not None and not (isinstance(stop, list) and all(isinstance(text, str) for text in stop)):
        raise wrong("stop_sequences", "must be an array of strings")
    if stop:
        request["stop"] = stop
    return tuple(stop or ())


def _read_thinking(body: dict[str, Any], request: dict[str, Any], ignored: Ignored) -> bool:
    """``thinking`` and ``output_config``; returns whether the caller wants to see thinking.

    ``enabled`` and ``disabled`` set the template's ``enable_thinking``; ``adaptive`` and a missing field leave it to
    the template's default. An effort is passed on only where thinking is on, since vLLM turns it on for any effort.
    """
    thinking = optional(body, "thinking", dict, "an object", "") or {}
    kind = thinking.get("type") if thinking else None
    if kind not in (None, "enabled", "disabled", "adaptive", "between_tools"):
        raise wrong("thinking.type", "must be 'enabled', 'disabled' or 'adaptive'")
    ignored.fields(thinking, frozenset(), "thinking")
    if kind in ("enabled", "disabled"):
        request["chat_template_kwargs"] = {"enable_thinking": kind == "enabled"}
    elif kind is not None:
        ignored.add("thinking.type")
    wanted = kind not in (None, "disabled")
    config = optional(body, "output_config", dict, "an object", "") or {}
    ignored.fields(config, frozenset({"effort", "format"}), "output_config")
    effort = config.get("effort")
    if effort is not None:
        if effort not in _EFFORTS:
            raise wrong("output_config.effort", f"must be one of {', '.join(_EFFORTS)}")
        if wanted:
            request["reasoning_effort"] = effort
        else:
            ignored.add("output_config.effort")
    if (shape := config.get("format") or body.get("output_format")) is not None:
        request["response_format"] = _read_format(shape)
    return wanted


def _read_format(shape: Any) -> dict[str, Any]:
    path = "output_config.format"
    if not isinstance(shape, dict) or shape.get("type") != "json_schema":
        raise wrong(path, "must be an object of type 'json_schema'")
    schema = require(shape, "schema", dict, "an object", path)
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": schema}}
