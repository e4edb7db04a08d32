"""Contents and their parts as messages of the hub.

A model's turn becomes one assistant message, however the client cut it: streaming clients keep a content per event.
Gemini's function calls need no ids, so calls without one get the id of their place in the history, and responses without
one are paired with the calls of the turn before them by name and order.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from proxy.dialects.base import BadRequest
from proxy.dialects.gemini import proto

_DATA = (
    "text",
    "functionCall",
    "functionResponse",
    "inlineData",
    "fileData",
    "executableCode",
    "codeExecutionResult",
)
"""A part holds one of them."""
_NOTES = frozenset({"thought", *_DATA})
_MEDIA = frozenset({"image", "audio", "video"})


def read_system(value: Any) -> dict[str, Any] | None:
    """``systemInstruction`` as a message; None where it says nothing. Raises BadRequest."""
    if isinstance(value, str):
        return {"role": "system", "content": value} if value else None
    where = "systemInstruction"
    parts = [
        proto.fields(part, f"{where}.parts")
        for part in proto.items(proto.fields(value, where), "parts", where)
    ]
    texts = [proto.text(part, "text", f"{where}.parts") for part in parts]
    if any(text is None for text in texts):
        raise BadRequest("'systemInstruction' may hold text only.", where)
    content = _content([{"type": "text", "text": text} for text in texts if text])
    return {"role": "system", "content": content} if content else None


def read_contents(contents: Any, ignored: set[str]) -> list[dict[str, Any]]:
    """At least one message. Adds to ``ignored`` what was left out. Raises BadRequest."""
    if not isinstance(contents, list):
        raise proto.invalid("contents", "an array of contents", contents)
    if not contents:
        raise BadRequest("contents is not specified", "contents")
    history = _History(ignored)
    for index, content in enumerate(contents):
        history.add(content, f"contents[{index}]")
    return history.messages


class _History:
    def __init__(self, ignored: set[str]) -> None:
        self.messages: list[dict[str, Any]] = []
        self._ignored = ignored
        self._calls = 0
        self._waiting: dict[str, str] = {}
        """Id and name of each call that has no response yet, of the last turn of the model."""

    def add(self, value: Any, where: str) -> None:
        content = proto.fields(value, where)
        role = content.get("role", "user")
        parts = [
            self._part(part, f"{where}.parts[{i}]")
            for i, part in enumerate(proto.items(content, "parts", where))
        ]
        if role == "model":
            self._add_model(parts, where)
        elif role in ("user", "function", "tool"):
            if not parts:
                raise BadRequest(f"{where}.parts: contents.parts must not be empty.", where)
            self._add_user(parts, where)
        else:
            raise BadRequest("Please use a valid role: user, model.", f"{where}.role")

    def _part(self, value: Any, where: str) -> dict[str, Any]:
        part = proto.fields(value, where)
        if len([name for name in _DATA if name in part]) != 1:
            message = f"{where}.data: required oneof field 'data' must have one initialized field"
            raise BadRequest(message, where)
        proto.text(part, "text", where)
        self._ignored |= {f"contents.parts.{name}" for name in part if name not in _NOTES}
        return part

    def _add_model(self, parts: list[dict[str, Any]], where: str) -> None:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            self.messages.append({"role": "assistant", "content": ""})
            self._waiting = {}
        message = self.messages[-1]
        for part in parts:
            if part.get("thought") is True and "text" in part:
                message["reasoning_content"] = message.get("reasoning_content", "") + part["text"]
            elif "functionCall" in part:
                message.setdefault("tool_calls", []).append(
                    self._call(part["functionCall"], f"{where}.functionCall")
                )
            else:
                message["content"] = (message["content"] or "") + _model_text(part, where)
        if message.get("tool_calls"):
            message["content"] = message["content"] or None

    def _call(self, value: Any, where: str) -> dict[str, Any]:
        call = proto.fields(value, where)
        name = proto.text(call, "name", where)
        if not name:
            raise BadRequest(f"{where}.name: Name cannot be empty.", where)
        arguments = call.get("args", {})
        if not isinstance(arguments, dict):
            raise proto.invalid(f"{where}.args", "an object", arguments)
        call_id = proto.text(call, "id", where) or f"call_{self._calls}"
        self._calls += 1
        self._waiting[call_id] = name
        return {
            "id": call_id,
            "type": "function",
            "function": {"name": name, "arguments": _dumps(arguments, where)},
        }

    def _add_user(self, parts: list[dict[str, Any]], where: str) -> None:
        """Tool messages and a user's message, in the order of the parts."""
        said: list[dict[str, Any]] = []
        for part in [*parts, None]:
            if said and (part is None or "functionResponse" in part):
                self.messages.append({"role": "user", "content": _content(said)})
                said = []
            if part is None:
                break
            if "functionResponse" in part:
                self.messages.append(self._response(part["functionResponse"], f"{where}.functionResponse"))
            else:
                said.append(_user_part(part, where))

    def _response(self, value: Any, where: str) -> dict[str, Any]:
        response = proto.fields(value, where)
        name = proto.text(response, "name", where) or ""
        call_id = self._find_call(proto.text(response, "id", where), name)
        if call_id is None:
            message = (
                "Please ensure that function response turn comes immediately after a function call turn."
            )
            raise BadRequest(f"{message} ('{name}' answers no call.)", where)
        del self._waiting[call_id]
        content = [{"type": "text", "text": _result(response.get("response", {}), where)}]
        for part in proto.items(response, "parts", where):
            content.append(_media(proto.fields(part, f"{where}.parts"), f"{where}.parts"))
        known = {"name", "id", "response", "parts"}
        self._ignored |= {f"contents.parts.functionResponse.{key}" for key in response if key not in known}
        return {"role": "tool", "tool_call_id": call_id, "name": name, "content": _content(content)}

    def _find_call(self, call_id: str | None, name: str) -> str | None:
        if call_id in self._waiting:
            return call_id
        return next((known for known, called in self._waiting.items() if called == name), None)


def _content(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text as a string, as most agents send it; several keep their borders."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def _result(response: Any, where: str) -> str:
    """What a function gave back, for the model to read: the text of ``{"output": text}``, else the object as JSON."""
    if not isinstance(response, dict):
        raise proto.invalid(f"{where}.response", "an object", response)
    if response.keys() == {"output"} and isinstance(response["output"], str):
        return response["output"]
    return _dumps(response, where)


def _user_part(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    if "text" in part:
        return {"type": "text", "text": part["text"]}
    if "inlineData" in part or "fileData" in part:
        return _media(part, where)
    raise BadRequest(f"{where}: a user's turn holds text, media and function responses only.", where)


def _model_text(part: Mapping[str, Any], where: str) -> str:
    """Text, or what Google's own code tool left in the history, as fenced text: the engine has no such tool."""
    if "text" in part:
        return part["text"]
    if "executableCode" in part:
        code = proto.fields(part["executableCode"], f"{where}.executableCode")
        language = (proto.text(code, "language", where) or "").lower()
        return f"\n```{language}\n{proto.text(code, 'code', where) or ''}\n```\n"
    if "codeExecutionResult" in part:
        result = proto.fields(part["codeExecutionResult"], f"{where}.codeExecutionResult")
        return f"\n```\n{proto.text(result, 'output', where) or ''}\n```\n"
    raise BadRequest(f"{where}: media in the model's own turns are not served.", where)


def _media(part: Mapping[str, Any], where: str) -> dict[str, Any]:
    """A part with a link or a data URL, which engines with such a model read; text files become text."""
    name = "inlineData" if "inlineData" in part else "fileData"
    blob = proto.fields(part.get(name), f"{where}.{name}")
    mime = proto.text(blob, "mimeType", where) or ""
    kind = mime.partition("/")[0]
    if kind not in _MEDIA and not (kind == "text" and name == "inlineData"):
        raise BadRequest(f"Unsupported MIME type: {mime or 'none given'}", f"{where}.{name}.mimeType")
    if name == "fileData":
        url = proto.text(blob, "fileUri", where) or ""
    else:  # Google's Python client writes the URL-safe alphabet
        data = (proto.text(blob, "data", where) or "").replace("-", "+").replace("_", "/")
        if kind == "text":
            return {"type": "text", "text": _decode_text(data, where)}
        url = f"data:{mime};base64,{data}"
    return {"type": f"{kind}_url", f"{kind}_url": {"url": url}}


def _decode_text(data: str, where: str) -> str:
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError) as error:
        raise BadRequest(f"{where}.inlineData.data is no text in base64: {error}.", where) from None


def _dumps(value: Any, where: str) -> str:
    try:
        return orjson.dumps(value).decode()
    except orjson.JSONEncodeError as error:  # JSON is read to a greater depth than it is written
        raise BadRequest(f"'{where}' cannot be passed on: {error}.", where) from None
