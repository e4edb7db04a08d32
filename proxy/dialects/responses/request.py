"""Requests of the Responses API: what of them reaches the hub, what is dropped, what is refused. Pure.

Source of the format: OpenAI's API reference, "Create a model response". vLLM's additions to this route go through as
they do on its chat route, subject to the sampling contract.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from proxy import hub
from proxy.dialects.base import BadRequest
from proxy.dialects.responses.output import RESPONSE, SPAN
from proxy.dialects.responses.reading import objects, text_of
from proxy.dialects.responses.tools import Toolbox

LOGPROBS = "message.output_text.logprobs"
_INCLUDED = frozenset({LOGPROBS, "reasoning.encrypted_content"})
_PASSED = frozenset(
    {
        "temperature",
        "top_p",
        "parallel_tool_calls",
        # vLLM's own, on its route for responses as on that for chat
        "cache_salt",
        "chat_template_kwargs",
        "frequency_penalty",
        "ignore_eos",
        "include_stop_str_in_output",
        "kv_transfer_params",
        "logit_bias",
        "min_p",
        "mm_processor_kwargs",
        "presence_penalty",
        "priority",
        "repetition_penalty",
        "seed",
        "skip_special_tokens",
        "stop",
        "stop_token_ids",
        "structured_outputs",
        "top_k",
        "vllm_xargs",
    }
)
"""Fields that the hub has under the same name."""
_READ = frozenset(
    {
        "model",
        "input",
        "instructions",
        "stream",
        "tools",
        "tool_choice",
        "text",
        "reasoning",
        "include",
        "max_output_tokens",
        "top_logprobs",
        "previous_response_id",
        "store",
        "metadata",
        "background",
    }
)
"""Fields that are translated or answered here; every other one is ignored and recorded."""
_REFUSED = {
    "background": "Background responses are not supported: ask for a stream, or wait for the reply.",
    "conversation": "Conversations are not stored: send the history, or 'previous_response_id'.",
    "prompt": "Prompt templates are not stored: send 'input' and 'instructions'.",
}


@dataclass(slots=True)
class Request:
    """A request, checked; its items are still to be read."""

    fields: dict[str, Any]
    """As it came."""
    hub: dict[str, Any]
    """Without its messages."""
    items: list[dict[str, Any]]
    toolbox: Toolbox
    logprobs: bool
    """Whether the caller asked for those of the text."""
    previous: str | None
    """Id of the span that it continues."""
    ignored: list[str] = field(default_factory=list)


def read(raw: bytes) -> Request:
    """Raises BadRequest."""
    fields = hub.parse_body(raw)
    hub.check_types(
        fields,
        ("model", str, "a string"),
        ("instructions", str, "a string"),
        ("stream", bool, "a boolean"),
        ("store", bool, "a boolean"),
        ("background", bool, "a boolean"),
        ("parallel_tool_calls", bool, "a boolean"),
        ("max_output_tokens", int, "an integer"),
        ("top_logprobs", int, "an integer"),
        ("text", dict, "an object"),
        ("reasoning", dict, "an object"),
        ("include", list, "an array"),
        ("metadata", dict, "an object"),
        ("previous_response_id", str, "a string"),
    )
    if not all(isinstance(name, str) for name in fields.get("include") or ()):
        raise BadRequest("Each of 'include' must be a string.", "include")
    for name, message in _REFUSED.items():
        if fields.get(name):
            raise BadRequest(message, name, code="unsupported_parameter")
    items = _items(fields)
    toolbox = _toolbox(fields, items)
    request = Request(
        fields,
        {name: fields[name] for name in _PASSED if fields.get(name) is not None},
        items,
        toolbox,
        LOGPROBS in (fields.get("include") or ()),
        _previous(fields),
    )
    _translate(request)
    request.ignored += toolbox.ignored
    request.ignored += [
        name
        for name, value in fields.items()
        if value is not None and name not in _READ and name not in _PASSED and name not in _REFUSED
    ]
    return request


def _items(fields: Mapping[str, Any]) -> list[dict[str, Any]]:
    value = fields.get("input")
    if isinstance(value, str):
        value = [{"role": "user", "content": value}] if value else []
    items = [] if value is None else objects(value, "input")
    if not items and not fields.get("previous_response_id"):
        raise BadRequest("'input' must be text or a non-empty array of items.", "input")
    return items


def _toolbox(fields: Mapping[str, Any], items: list[dict[str, Any]]) -> Toolbox:
    toolbox = Toolbox()
    if fields.get("tools") is not None:
        toolbox.add(fields["tools"], "tools")
    for index, item in enumerate(items):
        if item.get("type") == "additional_tools":
            toolbox.add(item.get("tools"), f"input[{index}].tools")
    return toolbox


def _previous(fields: Mapping[str, Any]) -> str | None:
    identifier = fields.get("previous_response_id")
    if not identifier:
        return None
    if not identifier.startswith(RESPONSE):
        raise not_found(identifier)
    return SPAN + identifier.removeprefix(RESPONSE)


def not_found(identifier: str) -> BadRequest:
    """For a ``previous_response_id`` that names no stored response of the rollout."""
    message = f"Previous response with id '{identifier}' not found."
    return BadRequest(message, "previous_response_id", code="previous_response_not_found")


def _translate(request: Request) -> None:
    """Fields that the hub has under other names, or in parts."""
    fields, body, ignored = request.fields, request.hub, request.ignored
    for name in ("model", "stream"):
        if fields.get(name) is not None:
            body[name] = fields[name]
    if fields.get("max_output_tokens") is not None:
        body["max_completion_tokens"] = fields["max_output_tokens"]
    if (choice := request.toolbox.choose(fields.get("tool_choice"))) is not None:
        body["tool_choice"] = choice
    if request.toolbox.functions:
        body["tools"] = request.toolbox.functions
    else:
        body.pop("parallel_tool_calls", None)
    if request.logprobs:
        body["logprobs"] = True
        if fields.get("top_logprobs"):
            body["top_logprobs"] = fields["top_logprobs"]
    elif fields.get("top_logprobs"):
        ignored.append("top_logprobs")
    ignored += [f"include.{name}" for name in fields.get("include") or () if name not in _INCLUDED]
    for name, value in (fields.get("reasoning") or {}).items():
        if name == "effort" and value is not None:
            body["reasoning_effort"] = value
        elif value is not None:
            ignored.append(f"reasoning.{name}")
    for name, value in (fields.get("text") or {}).items():
        if name == "format" and value is not None:
            if (response_format := _format(value)) is not None:
                body["response_format"] = response_format
        elif value is not None:
            ignored.append(f"text.{name}")


def _format(value: Any) -> dict[str, Any] | None:
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return {"type": "json_object"}
    if kind == "json_schema":
        schema = {
            key: value[key] for key in ("description", "schema", "strict") if value.get(key) is not None
        }
        return {
            "type": "json_schema",
            "json_schema": {"name": text_of(value, "name", "text.format"), **schema},
        }
    raise BadRequest("'text.format.type' must be 'text', 'json_object' or 'json_schema'.", "text.format.type")
