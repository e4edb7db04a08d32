"""A whole reply in the shape of the Messages API, and what whole and streamed replies share. Pure.

Source of the format: Anthropic's API reference, "Messages" and "Streaming messages".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

UNPARSED = "unparsed_arguments"
"""Key of the input of a call whose arguments are no JSON object, which the format has no place for: their text is its
value. A harness sends it back as it came, and ``history`` takes the text out again."""


@dataclass(frozen=True, slots=True)
class Head:
    """What of a reply is known before the engine was asked."""

    id: str
    model: str
    signature: str
    """Of thinking blocks. The format wants one, harnesses drop thoughts without; it names the span."""
    thinking: bool
    """Whether thinking is sent."""
    stop_sequences: tuple[str, ...]

    def message(self, content: list[Any], usage: dict[str, int]) -> dict[str, Any]:
        return {
            "id": self.id,
            "type": "message",
            "role": "assistant",
            "model": self.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": usage,
        }

    def call_id(self, given: Any, index: int) -> str:
        """The engine's id of a tool call; one of our own where it gave none."""
        return given if isinstance(given, str) and given else f"toolu_{self.id.removeprefix('msg_')}_{index}"


def thoughts_of(message: Mapping[str, Any]) -> str:
    """The reasoning of a message or delta: ``reasoning``, in older engines ``reasoning_content``."""
    return message.get("reasoning") or message.get("reasoning_content") or ""


def usage_of(prompt_tokens: Any, completion_tokens: Any) -> dict[str, int]:
    """Token counts; all of the prompt counts as input, cached or not. What is no count is 0."""
    counts = [
        value if isinstance(value, int) and value > 0 else 0 for value in (prompt_tokens, completion_tokens)
    ]
    return {
        "input_tokens": counts[0],
        "output_tokens": counts[1],
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 0,
    }


def parse_input(arguments: str) -> orjson.Fragment | dict[str, Any]:
    """A call's arguments as the ``input`` of a block: the engine's own text where it is a JSON object."""
    if not arguments.strip():
        return {}
    if is_object(arguments):
        return orjson.Fragment(arguments)
    return {UNPARSED: arguments}


def is_object(arguments: str) -> bool:
    try:
        return isinstance(orjson.loads(arguments), dict)
    except orjson.JSONDecodeError:
        return False


def stop_of(
    finish: Any, stop: Any, arguments: Iterable[str], stop_sequences: tuple[str, ...]
) -> tuple[str, str | None]:
    """``stop_reason`` and ``stop_sequence``.

    ``stop``: the engine's stop reason; ``arguments`` of each tool call. Calls that are whole are to be run, also where
    a stop sequence came after them; a call that one cut short is not.
    """
    arguments = list(arguments)
    if finish == "length":
        return "max_tokens", None
    if finish == "content_filter":
        return "refusal", None
    stopped = isinstance(stop, str) and stop in stop_sequences
    if arguments and not (stopped and not all(map(is_object, arguments))):
        return "tool_use", None
    return ("stop_sequence", stop) if stopped else ("end_turn", None)


def whole(reply: Mapping[str, Any], head: Head) -> bytes:
    """The body of a reply: thinking, text, tool calls."""
    choice = reply["choices"][0]
    message = choice.get("message") or {}
    content: list[dict[str, Any]] = []
    thoughts = thoughts_of(message)
    if thoughts and head.thinking:
        content.append({"type": "thinking", "thinking": thoughts, "signature": head.signature})
    if text := message.get("content"):
        content.append({"type": "text", "text": text})
    arguments = []
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        arguments.append(function.get("arguments") or "")
        content.append(
            {
                "type": "tool_use",
                "id": head.call_id(call.get("id"), index),
                "name": function["name"],
                "input": parse_input(arguments[-1]),
            }
        )
    usage = reply.get("usage") or {}
    document = head.message(content, usage_of(usage.get("prompt_tokens"), usage.get("completion_tokens")))
    document["stop_reason"], document["stop_sequence"] = stop_of(
        choice.get("finish_reason"), choice.get("stop_reason"), arguments, head.stop_sequences
    )
    return orjson.dumps(document)
