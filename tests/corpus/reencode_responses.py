"""The hub's request said again in the Responses API: what a decoder that lost nothing must be able to give back.

Written from the hub alone, and apart from the decoder, so that a fault of the one does not hide in the other. Two
notations of the same become one on both sides (``plain``); what has no meaning here is not compared (``IGNORED``).
"""

from __future__ import annotations

import json
from typing import Any

IGNORED = frozenset({"client_metadata", "prompt_cache_key", "include", "store", "previous_response_id"})
"""Fields of a body that do not reach the model: labels of the harness, what the reply is to hold, whether it is kept.
``previous_response_id`` is in ``Call.previous``; the test looks at it there."""
IGNORED_OF_ITEMS = frozenset({"id", "status"})
"""What a server gave to items."""


def reencode(hub: dict[str, Any], instructions: bool, namespaces: list[str]) -> dict[str, Any]:
    """``instructions``: whether the body had any: the hub has a system message for them. ``namespaces``: those of the
    body's tools."""
    messages = list(hub["messages"])
    body: dict[str, Any] = {
        name: hub[name] for name in ("model", "stream", "tool_choice", "parallel_tool_calls") if name in hub
    }
    if instructions:
        body["instructions"] = messages.pop(0)["content"]
    if "max_completion_tokens" in hub:
        body["max_output_tokens"] = hub["max_completion_tokens"]
    if "reasoning_effort" in hub:
        body["reasoning"] = {"effort": hub["reasoning_effort"]}
    body["tools"] = [tool(entry["function"], namespaces) for entry in hub.get("tools", [])]
    body["input"] = [item for message in messages for item in items(message, namespaces)]
    return body


def split(name: str, namespaces: list[str]) -> dict[str, str]:
    for namespace in namespaces:
        if name.startswith(f"{namespace}__"):
            return {"namespace": namespace, "name": name.removeprefix(f"{namespace}__")}
    return {"name": name}


def tool(function: dict[str, Any], namespaces: list[str]) -> dict[str, Any]:
    return {"type": "function", **function, **split(function["name"], namespaces)}


def items(message: dict[str, Any], namespaces: list[str]) -> list[dict[str, Any]]:
    role, content = message["role"], message["content"]
    if role == "tool":
        return [{"type": "function_call_output", "call_id": message["tool_call_id"], "output": content}]
    kind = "output_text" if role == "assistant" else "input_text"
    texts = [content] if isinstance(content, str) else [part["text"] for part in content or ()]
    found: list[dict[str, Any]] = []
    if texts:
        found.append({"role": role, "content": [{"type": kind, "text": text} for text in texts]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        named = split(function["name"], namespaces)
        found.append(
            {"type": "function_call", "call_id": call["id"], **named, "arguments": function["arguments"]}
        )
    return found


def plain(body: dict[str, Any]) -> dict[str, Any]:
    """A body as it was sent, in the one notation that ``reencode`` writes and without what is not compared."""
    body = {name: value for name, value in json.loads(json.dumps(body)).items() if name not in IGNORED}
    body["input"] = [plain_item(item) for item in body["input"]]
    body["tools"] = [flat for entry in body.get("tools", ()) for flat in plain_tools(entry)]
    if (reasoning := body.pop("reasoning", None)) and reasoning.pop("summary", None) and reasoning:
        body["reasoning"] = reasoning
    return body


def plain_item(item: dict[str, Any]) -> dict[str, Any]:
    item = {name: value for name, value in item.items() if name not in IGNORED_OF_ITEMS}
    if item.get("type") == "message":
        del item["type"]
    if "role" in item:
        kind = "output_text" if item["role"] == "assistant" else "input_text"
        if isinstance(item["content"], str):
            item["content"] = [{"type": kind, "text": item["content"]}]
        for part in item["content"]:
            part.pop("annotations", None)
    return item


def plain_tools(entry: dict[str, Any]) -> list[dict[str, Any]]:
    """Functions only, those of a namespace each for itself: hosted tools and a namespace's description are dropped."""
    if entry["type"] == "namespace":
        return [{**inner, "namespace": entry["name"]} for inner in entry["tools"]]
    return [entry] if entry["type"] == "function" else []
