"""The items of a conversation as the messages of a chat completion. Pure.

One reply of the model comes back as several items (reasoning, message, calls) and must become the one assistant message
that was sampled. Items that carry ids of this server's replies are put together by the span in their id, wherever they
stand; others by their order: reasoning, then a message, then calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from proxy.dialects.base import BadRequest
from proxy.dialects.responses import freeform, parts, reasoning
from proxy.dialects.responses.reading import text_of
from proxy.dialects.responses.tools import flat_name

_ITEM_ID = re.compile(r"(?:msg|rs|fc|ctc)_([0-9a-z]{26})_\d+")
_REASONING, _MESSAGE, _CALL = range(3)

CARRIED_OUT_BY_CLIENT = {
    "local_shell_call": "action",
    "shell_call": "action",
    "apply_patch_call": "operation",
}
"""Calls of tools that a harness carried out itself -> the field with what was asked: these go as function calls."""
DROPPED = frozenset(
    {
        "web_search_call",
        "file_search_call",
        "image_generation_call",
        "code_interpreter_call",
        "computer_call",
        "computer_call_output",
        "tool_search_call",
        "tool_search_output",
        "mcp_list_tools",
        "mcp_call",
        "mcp_approval_request",
        "mcp_approval_response",
        "program",
        "program_output",
    }
)
"""Traces of tools that another server carried out: no model here asked for them. Recorded as ``input.TYPE``."""


def item_id(prefix: str, key: str, index: int) -> str:
    """The id of a reply's item. ``key``: the part of the span's id behind its prefix."""
    return f"{prefix}_{key}_{index}"


def span_key(identifier: Any) -> str | None:
    """The ``key`` in the id of an item of ours; None for another's."""
    found = _ITEM_ID.fullmatch(identifier) if isinstance(identifier, str) else None
    return found[1] if found else None


class Conversation:
    """Reads items one after another. ``messages`` is what they became."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.ignored: list[str] = []
        self.unanswered: list[tuple[str, str]] = []
        """Call ids that an output names and no call before it has, each with its place in the request."""
        self._calls: set[str] = set()
        self._turn: dict[str, Any] | None = None
        """The assistant message that items may still join."""
        self._key: str | None = None
        self._rank = _REASONING
        self._adjacent = False

    def read(self, items: Iterable[dict[str, Any]]) -> None:
        """Raises BadRequest."""
        for index, item in enumerate(items):
            self._read(item, f"input[{index}]")
        for message in self.messages:
            if message["role"] == "assistant" and message["content"] is None and "tool_calls" not in message:
                message["content"] = ""

    def _read(self, item: dict[str, Any], where: str) -> None:
        kind = item.get("type") or ("message" if "role" in item else None)
        if kind == "message":
            self._message(item, where)
        elif kind == "reasoning":
            self._reasoning(item, where)
        elif kind in ("function_call", "custom_tool_call"):
            self._call(item, where)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            self._output(
                text_of(item, "call_id", where), parts.content(item.get("output"), f"{where}.output"), where
            )
        elif not isinstance(kind, str):
            raise BadRequest(f"'{where}' has neither a type nor a role.", f"{where}.type")
        elif kind.removesuffix("_output") in CARRIED_OUT_BY_CLIENT:
            self._carried_out(kind, item, where)
        elif kind in DROPPED:
            self.ignored.append(f"input.{kind}")
        elif kind != "additional_tools":  # which were read with the tools
            raise BadRequest(f"Items of type {kind!r} are not supported.", f"{where}.type")

    def _message(self, item: dict[str, Any], where: str) -> None:
        role = item.get("role")
        if role == "assistant":
            text = parts.assistant_text(item.get("content"), f"{where}.content")
            turn = self._join(item, _MESSAGE)
            turn["content"] = (turn["content"] or "") + text
        elif role in ("user", "system", "developer"):
            self._turn = None
            self.messages.append(
                {"role": role, "content": parts.content(item.get("content"), f"{where}.content")}
            )
        else:
            raise BadRequest(
                f"Invalid value: {role!r}. Supported roles are 'assistant', 'system', 'developer' and 'user'.",
                f"{where}.role",
            )

    def _reasoning(self, item: dict[str, Any], where: str) -> None:
        text = reasoning.item_text(item, where)
        if not text:
            if item.get("encrypted_content"):
                self.ignored.append("input.reasoning.encrypted_content")
            return
        turn = self._join(item, _REASONING)
        if before := turn.get("reasoning_content"):
            text = before + ("" if self._key else "\n") + text
        turn["reasoning_content"] = text

    def _call(self, item: dict[str, Any], where: str) -> None:
        name = flat_name(text_of(item, "name", where), item.get("namespace"))
        if item["type"] == "custom_tool_call":
            arguments = freeform.arguments(text_of(item, "input", where))
        else:
            arguments = text_of(item, "arguments", where)
        self._add_call(item, text_of(item, "call_id", where), name, arguments)

    def _carried_out(self, kind: str, item: dict[str, Any], where: str) -> None:
        identifier = text_of(item, "call_id" if item.get("call_id") is not None else "id", where)
        if asked := CARRIED_OUT_BY_CLIENT.get(kind):
            arguments = orjson.dumps(item.get(asked)).decode()
            self._add_call(item, identifier, kind.removesuffix("_call"), arguments)
        else:
            output = item.get("output")
            self._output(
                identifier, output if isinstance(output, str) else orjson.dumps(output).decode(), where
            )

    def _add_call(self, item: Mapping[str, Any], identifier: str, name: str, arguments: str) -> None:
        turn = self._join(item, _CALL)
        function = {"name": name, "arguments": arguments}
        turn.setdefault("tool_calls", []).append({"id": identifier, "type": "function", "function": function})
        self._calls.add(identifier)

    def _output(self, identifier: str, content: str | list[dict[str, Any]], where: str) -> None:
        if identifier not in self._calls:
            self.unanswered.append((identifier, where))
        self._adjacent = False
        self.messages.append({"role": "tool", "tool_call_id": identifier, "content": content})

    def _join(self, item: Mapping[str, Any], rank: int) -> dict[str, Any]:
        """The assistant message that an item belongs to: the last one, or a new one."""
        key = span_key(item.get("id"))
        if key is not None and self._key is not None:
            belongs = key == self._key
        else:
            belongs = self._adjacent and (rank > self._rank or rank == self._rank != _MESSAGE)
        if self._turn is None or not belongs:
            self._turn, self._key = {"role": "assistant", "content": None}, None
            self.messages.append(self._turn)
        self._key = self._key or key
        self._rank, self._adjacent = rank, True
        return self._turn
