"""Content of messages and tool outputs: the parts of the Responses API as those of a chat completion. Pure.

A single text part becomes plain text: the two are two ways to write the same, and harnesses change between them.
"""

from __future__ import annotations

from typing import Any

from proxy.dialects.base import BadRequest
from proxy.dialects.responses.reading import objects, text_of

_TEXT = {
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "summary_text": "text",
    "text": "text",
}
"""Kind of part -> the field with its text."""


def content(value: Any, where: str) -> str | list[dict[str, Any]]:
    """Content of a user's, a developer's or a tool's message. Raises BadRequest."""
    if isinstance(value, str):
        return value
    if value is None:
        raise BadRequest(f"Missing required parameter: '{where}'.", where)
    parts = [_part(part, f"{where}[{index}]") for index, part in enumerate(objects(value, where))]
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts


def assistant_text(value: Any, where: str) -> str:
    """Content of an assistant's message, which is text alone; refusals count as text. Raises BadRequest."""
    if isinstance(value, str):
        return value
    texts = []
    for index, part in enumerate(objects(value, where)):
        place = f"{where}[{index}]"
        kind = part.get("type")
        if not isinstance(kind, str) or kind not in _TEXT:
            raise BadRequest(f"An assistant message cannot hold a part of type {kind!r}.", f"{place}.type")
        texts.append(text_of(part, _TEXT[kind], place))
    return "".join(texts)


def _part(part: dict[str, Any], where: str) -> dict[str, Any]:
    kind = part.get("type")
    if isinstance(kind, str) and kind in _TEXT:
        return {"type": "text", "text": text_of(part, _TEXT[kind], where)}
    if kind == "input_image":
        return _image(part, where)
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "input_file":
        raise BadRequest("Files are not supported: put their text into the message.", where)
    raise BadRequest(
        f"Invalid value: {kind!r}. Supported types of content are input_text, output_text, refusal, input_image and "
        "input_audio.",
        f"{where}.type",
    )


def _image(part: dict[str, Any], where: str) -> dict[str, Any]:
    if part.get("image_url") is None and part.get("file_id") is not None:
        raise BadRequest(
            "Uploaded files are not supported: send the image as a data URL.", f"{where}.file_id"
        )
    image: dict[str, Any] = {"url": text_of(part, "image_url", where)}
    if part.get("detail") is not None:
        image["detail"] = part["detail"]
    return {"type": "image_url", "image_url": image}
