"""A request of Gemini's as a chat-completions request: tools, sampling parameters, response format, thinking."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from proxy import hub
from proxy.dialects.base import BadRequest, Target
from proxy.dialects.gemini import proto
from proxy.dialects.gemini.contents import read_contents, read_system
from proxy.dialects.gemini.reply import GeminiCall, Wanted
from proxy.dialects.gemini.schema import json_schema

_READ = frozenset({"contents", "systemInstruction", "tools", "toolConfig", "generationConfig", "model"})
"""``model`` stands in the path; some clients repeat it."""
_SAMPLING: dict[str, tuple[str, Callable[..., Any]]] = {
    "temperature": ("temperature", proto.number),
    "topP": ("top_p", proto.number),
    "topK": ("top_k", proto.integer),
    "maxOutputTokens": ("max_tokens", proto.integer),
    "candidateCount": ("n", proto.integer),
    "seed": ("seed", proto.integer),
    "presencePenalty": ("presence_penalty", proto.number),
    "frequencyPenalty": ("frequency_penalty", proto.number),
}
_GENERATION = frozenset(
    {
        *_SAMPLING,
        "stopSequences",
        "responseMimeType",
        "responseSchema",
        "responseJsonSchema",
        "thinkingConfig",
        "responseLogprobs",
        "logprobs",
    }
)
_DECLARATION = frozenset({"name", "description", "parameters", "parametersJsonSchema"})
_TOOL_CHOICES = {
    "AUTO": "auto",
    "MODE_UNSPECIFIED": "auto",
    "VALIDATED": "auto",
    "ANY": "required",
    "NONE": "none",
}
_LEVELS = frozenset({"minimal", "low", "medium", "high"})


def decode(raw: bytes, target: Target) -> GeminiCall:
    """See ``base.Dialect``."""
    return _build(hub.parse_body(raw), target)


def decode_count(raw: bytes, target: Target) -> GeminiCall:
    """A request for ``countTokens``: contents alone, or a whole request inside. Raises BadRequest."""
    body = proto.fields(hub.parse_body(raw), "")
    inner = body.get("generateContentRequest")
    return _build(body if inner is None else inner, target)


def _build(value: Any, target: Target) -> GeminiCall:
    body = proto.fields(value, "")
    if "cachedContent" in body:
        raise BadRequest("Cached content is not served: send the whole contents.", "cachedContent")
    ignored = {name for name in body if name not in _READ}
    messages = read_contents(body.get("contents", []), ignored)
    if system := read_system(body.get("systemInstruction", "")):
        messages.insert(0, system)
    request: dict[str, Any] = {"model": target.model, "messages": messages, "stream": target.stream}
    if tools := _tools(proto.items(body, "tools", ""), ignored):
        request["tools"] = tools
    _add_tool_choice(request, proto.fields(body.get("toolConfig", {}), "toolConfig"), ignored)
    config = proto.fields(body.get("generationConfig", {}), "generationConfig")
    ignored |= {f"generationConfig.{name}" for name in config if name not in _GENERATION}
    _add_sampling(request, config)
    _add_response_format(request, config)
    thoughts = _add_thinking(request, config, ignored)
    wanted = Wanted(thoughts=thoughts, logprobs=_add_logprobs(request, config))
    return GeminiCall(request, target, wanted, sorted(ignored))


def _tools(tools: list[Any], ignored: set[str]) -> list[dict[str, Any]]:
    """The functions. Tools that Google runs itself (search, code) do not exist here: dropped and recorded."""
    functions = []
    for tool in tools:
        for kind, value in proto.fields(tool, "tools").items():
            if kind != "functionDeclarations":
                ignored.add(f"tools.{kind}")
                continue
            if not isinstance(value, list):
                raise proto.invalid("tools.functionDeclarations", "an array", value)
            functions += [_function(one, ignored) for one in value]
    return functions


def _function(value: Any, ignored: set[str]) -> dict[str, Any]:
    where = "tools.functionDeclarations"
    declaration = proto.fields(value, where)
    ignored |= {f"{where}.{name}" for name in declaration if name not in _DECLARATION}
    name = proto.text(declaration, "name", where)
    if not name:
        raise BadRequest(f"{where}.name: a function needs a name.", where)
    function: dict[str, Any] = {"name": name}
    if description := proto.text(declaration, "description", where):
        function["description"] = description
    if "parametersJsonSchema" in declaration:
        function["parameters"] = declaration["parametersJsonSchema"]
    elif "parameters" in declaration:
        function["parameters"] = json_schema(declaration["parameters"], f"{where}.parameters")
    return {"type": "function", "function": function}


def _add_tool_choice(request: dict[str, Any], tool_config: dict[str, Any], ignored: set[str]) -> None:
    where = "toolConfig.functionCallingConfig"
    ignored |= {f"toolConfig.{name}" for name in tool_config if name != "functionCallingConfig"}
    config = proto.fields(tool_config.get("functionCallingConfig", {}), where)
    mode = config.get("mode")
    if mode is None or "tools" not in request:
        return
    if not isinstance(mode, str) or mode not in _TOOL_CHOICES:
        raise BadRequest(f"Invalid value at '{where}.mode': {mode!r:.40}.", f"{where}.mode")
    if mode == "VALIDATED":  # a grammar over free choice, which would bias the samples
        ignored.add(f"{where}.mode")
    request["tool_choice"] = _TOOL_CHOICES[mode]
    if mode == "ANY" and (allowed := proto.items(config, "allowedFunctionNames", where)):
        request["tools"] = [tool for tool in request["tools"] if tool["function"]["name"] in allowed]
        if not request["tools"]:
            raise BadRequest(f"'{where}.allowedFunctionNames' names no declared function.", where)


def _add_sampling(request: dict[str, Any], config: dict[str, Any]) -> None:
    where = "generationConfig"
    for name, (field, read) in _SAMPLING.items():
        if (value := read(config, name, where)) is not None:
            request[field] = value
    stops = proto.items(config, "stopSequences", where)
    if not all(isinstance(stop, str) for stop in stops):
        raise BadRequest(f"'{where}.stopSequences' must hold strings.", f"{where}.stopSequences")
    if stops:
        request["stop"] = stops


def _add_response_format(request: dict[str, Any], config: dict[str, Any]) -> None:
    where = "generationConfig"
    mime = proto.text(config, "responseMimeType", where)
    schema = config.get("responseJsonSchema")
    if schema is None and "responseSchema" in config:
        schema = json_schema(config["responseSchema"], f"{where}.responseSchema")
    if mime in (None, "", "text/plain") and schema is None:
        return
    if mime == "text/x.enum" and isinstance(schema, dict) and schema.get("enum"):
        request["structured_outputs"] = {"choice": schema["enum"]}
    elif mime != "application/json":
        message = (
            f"'{where}.responseMimeType' must be application/json, or text/x.enum with an enum, for a schema."
        )
        raise BadRequest(message, f"{where}.responseMimeType")
    elif schema is None:
        request["response_format"] = {"type": "json_object"}
    else:
        request["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "response", "schema": schema},
        }


def _add_thinking(request: dict[str, Any], config: dict[str, Any], ignored: set[str]) -> bool:
    """Returns whether the caller wants to see thoughts. A budget of 0 turns thinking off; the engine keeps no other."""
    where = "generationConfig.thinkingConfig"
    thinking = proto.fields(config.get("thinkingConfig", {}), where)
    level = (proto.text(thinking, "thinkingLevel", where) or "").lower()
    if level in _LEVELS:
        request["reasoning_effort"] = level
    elif level not in ("", "thinking_level_unspecified"):
        raise BadRequest(
            f"Invalid value at '{where}.thinkingLevel': {level!r:.40}.", f"{where}.thinkingLevel"
        )
    if proto.integer(thinking, "thinkingBudget", where) == 0:
        request["reasoning_effort"] = "none"
    elif "thinkingBudget" in thinking:
        ignored.add(f"{where}.thinkingBudget")
    read = ("thinkingLevel", "thinkingBudget", "includeThoughts")
    ignored |= {f"{where}.{name}" for name in thinking if name not in read}
    return proto.boolean(thinking, "includeThoughts", where)


def _add_logprobs(request: dict[str, Any], config: dict[str, Any]) -> bool:
    where = "generationConfig"
    if not proto.boolean(config, "responseLogprobs", where):
        return False
    request["logprobs"] = True
    if count := proto.integer(config, "logprobs", where):
        request["top_logprobs"] = count
    return True
