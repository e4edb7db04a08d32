"""The hub back to Gemini's request: what was not ignored must be in the hub, or a body could not be written again."""

from __future__ import annotations

import json
from typing import Any

_SAMPLING = {"temperature": "temperature", "top_p": "topP", "top_k": "topK", "max_tokens": "maxOutputTokens"}


def reencode(hub: dict[str, Any], thoughts: bool) -> dict[str, Any]:
    """A body that decodes to ``hub``, in the spelling of Google's JavaScript client. ``thoughts``: they are wanted."""
    body: dict[str, Any] = {"contents": []}
    for message in hub["messages"]:
        if message["role"] == "system":
            body["systemInstruction"] = {"parts": _texts(message["content"]), "role": "user"}
        elif message["role"] == "assistant":
            body["contents"].append({"parts": _model_parts(message), "role": "model"})
        elif message["role"] == "tool":
            body["contents"].append({"parts": [_response(message)], "role": "user"})
        else:
            body["contents"].append({"parts": _texts(message["content"]), "role": "user"})
    if "tools" in hub:
        body["tools"] = [{"functionDeclarations": [_declaration(tool["function"]) for tool in hub["tools"]]}]
    config = {google: hub[name] for name, google in _SAMPLING.items() if name in hub}
    if thoughts:
        config["thinkingConfig"] = {"includeThoughts": True}
    if config:
        body["generationConfig"] = config
    return body


def _texts(content: Any) -> list[dict[str, Any]]:
    return [{"text": content}] if isinstance(content, str) else [{"text": part["text"]} for part in content]


def _model_parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    if reasoning := message.get("reasoning_content"):
        parts.append({"text": reasoning, "thought": True})
    if message["content"]:
        parts.append({"text": message["content"]})
    for call in message.get("tool_calls", ()):
        function = call["function"]
        arguments = json.loads(function["arguments"])
        parts.append({"functionCall": {"id": call["id"], "args": arguments, "name": function["name"]}})
    return parts


def _response(message: dict[str, Any]) -> dict[str, Any]:
    response = {
        "name": message["name"],
        "response": {"output": message["content"]},
        "id": message["tool_call_id"],
    }
    return {"functionResponse": response}


def _declaration(function: dict[str, Any]) -> dict[str, Any]:
    return {
        ("parametersJsonSchema" if name == "parameters" else name): value for name, value in function.items()
    }
