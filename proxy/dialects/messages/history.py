"""The messages of a request as hub messages. Pure.

A run of assistant messages is one hub message: what the model says in one turn, Claude Code may send back in several.
Its texts are joined without a separator, as the deltas of a stream are, so that an echo equals the recorded reply.
Results follow the calls that they answer, in the order of the calls once all are there, whatever the order and the
messages they came in; other content of those messages comes after them, in its own order.
"""

from __future__ import annotations

from typing import Any

import orjson

from proxy.dialects.messages import parts
from proxy.dialects.messages.reading import Ignored, blocks_of, optional, require, wrong
from proxy.dialects.messages.reply import UNPARSED, is_object

_TOOL_USE = frozenset({"id", "name", "input"})
_TOOL_RESULT = frozenset({"tool_use_id", "content", "is_error"})
_THINKING = frozenset({"thinking", "signature"})
_TOOL_CHANGES = ("tool_addition", "tool_removal")

Message = dict[str, Any]


def read_system(system: Any, ignored: Ignored) -> list[Message]:
    """The ``system`` field: no message where it says nothing. Raises BadRequest."""
    if system is None:
        return []
    blocks = blocks_of(system, "system")
    found: list[parts.Part] = []
    for index, block in enumerate(blocks):
        if block.get("type") != "text":
            raise wrong(f"system.{index}.type", "must be 'text'")
        found += parts.read_block(block, f"system.{index}", ignored)
    content = parts.content_of(found)
    return [{"role": "system", "content": content}] if content else []


class History:
    """Takes the messages in order; ``finish`` returns them in hub terms."""

    def __init__(self, ignored: Ignored) -> None:
        self.added_tools: list[Any] = []
        """Definitions of tools that came in the midst of the conversation."""
        self._ignored = ignored
        self._messages: list[Message] = []
        self._turn: _Turn | None = None
        self._calls: dict[str, int] = {}
        self._last_calls: frozenset[str] = frozenset()
        self._results: list[Message] = []
        self._others: list[Message] = []

    def add(self, message: Message, path: str) -> None:
        """Raises BadRequest."""
        role = message.get("role")
        self._ignored.fields(message, frozenset({"role", "content"}), "messages")
        blocks = blocks_of(message.get("content"), f"{path}.content")
        if role == "assistant":
            self._add_assistant(blocks, f"{path}.content")
        elif role in ("user", "system"):
            self._end_turn()
            self._add_other(role, blocks, f"{path}.content")
        else:
            raise wrong(f"{path}.role", "must be 'user', 'assistant' or 'system'")

    def finish(self) -> tuple[list[Message], bool]:
        """The messages, and whether the last is the start of a reply that the model is to go on with."""
        last = self._turn
        if last is not None and last.calls:
            raise wrong("messages", "the last message calls a tool, and no tool_result answers it")
        if last is not None and last.is_empty():  # nothing to go on with
            last = self._turn = None
        self._end_turn()
        self._flush()
        return self._messages, last is not None

    def _add_assistant(self, blocks: list[dict[str, Any]], path: str) -> None:
        if self._turn is None:
            self._flush()
            self._turn = _Turn()
        for index, block in enumerate(blocks):
            self._turn.add(block, f"{path}.{index}", self._ignored)

    def _end_turn(self) -> None:
        if self._turn is None:
            return
        self._messages.append(self._turn.message())
        self._last_calls = frozenset(call["id"] for call in self._turn.calls)
        for call in self._turn.calls:
            self._calls[call["id"]] = len(self._calls)
        self._turn = None

    def _add_other(self, role: str, blocks: list[dict[str, Any]], path: str) -> None:
        found: list[parts.Part] = []
        says_more = False
        for index, block in enumerate(blocks):
            where = f"{path}.{index}"
            if block.get("type") == "tool_result" and role == "user":
                self._results.append(self._result(block, where))
                says_more = True
            elif block.get("type") in _TOOL_CHANGES and role == "system":
                self._change_tools(block, where)
                says_more = True
            else:
                found += parts.read_block(block, where, self._ignored)
        if content := parts.content_of(found):
            self._others.append({"role": role, "content": content})
        elif not says_more:
            raise wrong(path, "must not be empty")

    def _result(self, block: dict[str, Any], path: str) -> Message:
        self._ignored.fields(block, _TOOL_RESULT, "tool_result")
        call_id = require(block, "tool_use_id", str, "a string", path)
        if call_id not in self._calls:
            raise wrong(
                f"{path}.tool_use_id",
                f"unexpected `tool_use_id` {call_id!r}: no `tool_use` block before this `tool_result` has it",
            )
        if optional(block, "is_error", bool, "a boolean", path):
            self._ignored.add("tool_result.is_error")  # harnesses say it in the text as well
        content = block.get("content")
        blocks = blocks_of("" if content is None else content, f"{path}.content")
        found = parts.result_parts(blocks, f"{path}.content", self._ignored)
        return {"role": "tool", "tool_call_id": call_id, "content": parts.content_of(found)}

    def _change_tools(self, block: dict[str, Any], path: str) -> None:
        """Tools are all shown from the start: only one that is defined here is new, and none is taken away again,
        since every change of the list makes another prompt of the whole conversation."""
        tool = require(block, "tool", dict, "an object", path)
        if block["type"] == "tool_addition" and tool.get("type") == "tool_definition":
            self.added_tools.append(require(tool, "definition", dict, "an object", f"{path}.tool"))
        else:
            self._ignored.add(f"messages.{block['type']}")

    def _flush(self) -> None:
        """What came since the last turn of the assistant."""
        if self._last_calls and self._last_calls <= {result["tool_call_id"] for result in self._results}:
            self._results.sort(key=lambda result: self._calls[result["tool_call_id"]])
        self._messages += self._results
        self._messages += self._others
        self._results, self._others = [], []


class _Turn:
    """One turn of the assistant."""

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self._texts: list[str] = []
        self._thoughts: list[str] = []

    def is_empty(self) -> bool:
        return not (any(self._texts) or any(self._thoughts) or self.calls)

    def add(self, block: dict[str, Any], path: str, ignored: Ignored) -> None:
        kind = block.get("type")
        if kind == "text":
            (part,) = parts.read_block(block, path, ignored)
            self._texts.append(part["text"])
        elif kind == "tool_use":
            ignored.fields(block, _TOOL_USE, "tool_use")
            self.calls.append(_read_call(block, path))
        elif kind == "thinking":
            ignored.fields(block, _THINKING, "thinking")
            self._thoughts.append(require(block, "thinking", str, "a string", path))
        elif kind == "redacted_thinking":
            ignored.add(
                "messages.redacted_thinking"
            )  # encrypted by another provider: nobody here can read it
        else:
            raise wrong(
                f"{path}.type",
                f"{kind!r} is no type of content that is served here in a message of the assistant: "
                "tools run by the provider are not",
            )

    def message(self) -> Message:
        text: str | None = "".join(self._texts)
        message: Message = {"role": "assistant", "content": text}
        if thoughts := "".join(self._thoughts):
            message["reasoning_content"] = thoughts
        if self.calls:
            message["content"] = text or None
            message["tool_calls"] = self.calls
        return message


def _read_call(block: dict[str, Any], path: str) -> dict[str, Any]:
    call_id = require(block, "id", str, "a string", path)
    name = require(block, "name", str, "a string", path)
    arguments = require(block, "input", dict, "an object", path)
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": _text_of(arguments, path)},
    }


def _text_of(arguments: dict[str, Any], path: str) -> str:
    """As the model would write them; what it wrote, where ``reply`` had to wrap it."""
    if len(arguments) == 1 and isinstance(text := arguments.get(UNPARSED), str) and not is_object(text):
        return text
    try:
        return orjson.dumps(arguments).decode()
    except orjson.JSONEncodeError as error:  # JSON is read to a greater depth than it is written
        raise wrong(f"{path}.input", f"cannot be passed on: {error}") from None
