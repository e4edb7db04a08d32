"""A decoded request of the Messages API, written as such a request again: proof that the hub holds what was said.

``reencode`` takes three things from the original, and nothing else: the model's name, which no hub request has; what
the decoder recorded as ignored; and no more of ``thinking`` than its recorded fields. ``normal`` brings the original
to the one form that the hub cannot tell from its other forms.
"""

from __future__ import annotations

import json
from typing import Any

from proxy.dialects.messages import MessagesCall

Body = dict[str, Any]


def normal(body: Any) -> Any:
    """``body`` without what says the same in two ways: ``cache_control``; strings for a single text block; fields that
    hold their default (``tools: []``, ``stream: false``, ``is_error: false``)."""
    if isinstance(body, list):
        return [normal(item) for item in body]
    if not isinstance(body, dict):
        return body
    document = {name: normal(value) for name, value in body.items() if name != "cache_control"}
    for name in ("content", "system"):
        if isinstance(document.get(name), str):
            document[name] = [{"type": "text", "text": document[name]}]
    defaults = {"tools": [], "stream": False, "is_error": False}
    return {name: value for name, value in document.items() if defaults.get(name, ...) != value}


def reencode(call: MessagesCall, original: Body) -> Body:
    hub = call.hub
    body: Body = {"model": original["model"], "max_tokens": hub["max_tokens"]}
    messages = list(hub["messages"])
    if "system" in original:
        body["system"] = _blocks(messages.pop(0)["content"])
    body["messages"] = _messages(messages)
    for ours, theirs in (("stop", "stop_sequences"), ("stream", "stream"), ("temperature", "temperature")):
        if ours in hub:
            body[theirs] = hub[ours]
    if "tools" in hub:
        body["tools"] = [_tool(tool["function"]) for tool in hub["tools"]]
    if "tool_choice" in hub:
        body["tool_choice"] = {"type": hub["tool_choice"]}
    config: Body = {}
    if "reasoning_effort" in hub:
        config["effort"] = hub["reasoning_effort"]
    if shape := hub.get("response_format"):
        config["format"] = {"type": "json_schema", "schema": shape["json_schema"]["schema"]}
    if config:
        body["output_config"] = config
    for name in call.ignored:
        _restore(body, original, name.split("."))
    return normal(body)


def _restore(body: Body, original: Body, names: list[str]) -> None:
    """Copies an ignored field: ``metadata``, ``thinking.type``, or ``tools.defer_loading`` in each tool that has it."""
    name, *rest = names
    if not rest:
        if name in original:
            body[name] = original[name]
    elif isinstance(original[name], list):
        for ours, theirs in zip(body[name], original[name], strict=True):
            _restore(ours, theirs, rest)
    else:
        _restore(body.setdefault(name, {}), original[name], rest)


def _messages(messages: list[Body]) -> list[Body]:
    """Results of tools, and what the user says right after them, are one message of the user."""
    found: list[Body] = []
    results: list[Body] = []
    for message in messages:
        if message["role"] == "tool":
            block = {"type": "tool_result", "tool_use_id": message["tool_call_id"]}
            results.append({**block, "content": message["content"]})
            continue
        if message["role"] != "user" and results:
            found.append({"role": "user", "content": results})
            results = []
        blocks = [*results, *_assistant_blocks(message)]
        found.append({"role": message["role"], "content": blocks})
        results = []
    return [*found, {"role": "user", "content": results}] if results else found


def _assistant_blocks(message: Body) -> list[Body]:
    blocks: list[Body] = []
    if thoughts := message.get("reasoning_content"):
        blocks.append({"type": "thinking", "thinking": thoughts})
    blocks += _blocks(message["content"] or [])
    for call in message.get("tool_calls") or ():
        function = call["function"]
        block = {"type": "tool_use", "id": call["id"], "name": function["name"]}
        blocks.append({**block, "input": json.loads(function["arguments"])})
    return blocks


def _blocks(content: str | list[Body]) -> list[Body]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _tool(function: Body) -> Body:
    tool = {"name": function["name"], "input_schema": function["parameters"]}
    return tool | {name: function[name] for name in ("description", "strict") if name in function}
