"""One form for messages that mean the same, and hashes of histories: by them a request finds the turn it continues.

Harnesses send a history back in other words than it was said: arguments re-spaced, text as a list of parts, ids
replaced, thinking left out. Matching on bytes forks every second harness; so histories are compared by what they mean.
What is put aside is listed here and nowhere else, each rule with the harness that needs it. Pure.

Every rule is about matching only: what the engine is given is the request itself, or tokens that were recorded.

==============================  =====================================================================================
compared                        put aside
==============================  =====================================================================================
role                            ``developer`` is ``system`` (pi, codex)
content: text, other parts      one text as string or list; empty, null and missing text; ``cache_control`` and null
                                fields of parts (claude-code moves the first and flips the second every turn)
text of an assistant            outer white space (hermes, gptme); what ``REWRITES`` names
text beside tool calls          of the reply that is looked up, whether it was dropped (crewai): see below
tool calls: names, arguments    as JSON values: spacing, order of keys, escapes, ``1.0`` for ``1``, nothing for ``{}``;
                                text where they are no JSON
which call a result answers     the ids themselves (openclaw rewrites them): the call's place in its turn is compared
lines of system text            those that ``VOLATILE`` names
                                reasoning: harnesses echo it or not; ``name``, ``refusal`` and all other fields
==============================  =====================================================================================

A message that only repeats a reply is hashed like the reply: tool calls, or text where there are none. So a harness that
drops the text beside a call still finds its turn; ``spanlog.matching`` then refuses a turn whose text was altered, and
prefers one whose ids, text and reasoning are those echoed. From the next message on, the text counts as it was sent.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

SIZE = 20
"""Bytes of a digest: by chance two histories agree once in 2**80."""
VOLATILE = {
    "x-anthropic-billing-header": re.compile(r"^x-anthropic-billing-header:[^\n]*\n*", re.MULTILINE),
}
"""Lines of system text that change from call to call: a text that they hold -> the lines. claude-code's first system
block is such a line, with a hash of the prompt."""
REWRITES = {
    "Calling tools:": re.compile(r"\s*^Calling tools:\n\[\{'id': .*\}\]\s*\Z", re.MULTILINE | re.DOTALL),
    "</code>": re.compile(r"\s*</code>\s*\Z"),
}
"""What smolagents adds to the text of its CodeAgent's replies, whose stop strings keep the model from saying it."""
IGNORED_TOOL_FIELDS = frozenset({"strict", "cache_control"})
"""Of a tool and its function: they do not reach the prompt."""
RENDERED = (
    "chat_template",
    "chat_template_kwargs",
    "documents",
    "reasoning_effort",
    "add_special_tokens",
)
"""Request fields beside messages and tools that change how the same messages become a prompt."""

Canonical = Any
"""A JSON value."""


def context_key(request: Mapping[str, Any], *, policy_id: str) -> bytes:
    """Digest of what all turns of one history share, beside their messages. ``request`` is in hub terms."""
    settings = {name: request[name] for name in RENDERED if request.get(name) not in (None, {}, [])}
    tools = canonical_tools(request.get("tools"))
    without = bool(tools) and request.get("tool_choice") == "none"
    return digest([policy_id, tools, settings, without])


def context_hashes(key: bytes, messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """Hash (hex) of the history up to and with each message of a hub request.

    An assistant's message is the end of a turn there: hashed as ``extend_hash`` hashes the reply that it repeats.
    """
    hashes, before, places = [], key, {}
    for message in messages:
        whole = canonical_message(message, places)
        after = _combine(before, digest(whole))
        if is_reply(message):
            places = call_places(message)
            said = reply_form(whole)
            hashes.append((after if said is whole else _combine(before, digest(said))).hex())
        else:
            hashes.append(after.hex())
        before = after
    return hashes


def extend_hash(before: str, message: Mapping[str, Any]) -> str:
    """Hash of a history that has the hash ``before``, and one more message: the reply."""
    return _combine(bytes.fromhex(before), digest(reply_form(canonical_message(message)))).hex()


def canonical_message(message: Mapping[str, Any], places: Mapping[str, int] | None = None) -> Canonical:
    """``[role, content, tool calls or the place of the call that is answered]``. Never raises, whatever JSON it is.

    ``places``: of the calls of the assistant's last message, by id (``call_places``).
    """
    role = message.get("role")
    if role == "developer":
        role = "system"
    if role == "assistant":
        return [role, reply_text(message), canonical_calls(message)]
    content = canonical_content(message.get("content"))
    if role == "system":
        content = without_volatile(content)
    if role == "tool":
        id = message.get("tool_call_id") or message.get("id")
        return [role, content, (places or {}).get(id, -1) if isinstance(id, str) else -1]
    return [role, content, None]


def reply_form(canonical: Canonical) -> Canonical:
    """Of an assistant's canonical message: the tool calls alone where there are any. The same object if unchanged."""
    role, content, calls = canonical
    return [role, None, calls] if calls and content is not None else canonical


def is_reply(message: Mapping[str, Any]) -> bool:
    """Whether the message is one of the model's."""
    return message.get("role") == "assistant"


def reply_text(message: Mapping[str, Any]) -> str | None:
    """Canonical text of an assistant's message; null if there is none, or it has parts that are no text."""
    content = canonical_content(message.get("content"))
    if isinstance(content, list):
        if not all(isinstance(part, str) for part in content):
            return dumps(content).decode(errors="replace")
        content = "".join(content)
    if content is None:
        return None
    if not isinstance(content, str):
        return dumps(content).decode(errors="replace")
    content = content.strip()
    for mark, pattern in REWRITES.items():
        if mark in content:
            content = pattern.sub("", content)
    return content or None


def reply_reasoning(message: Mapping[str, Any]) -> str | None:
    """The thinking in an assistant's message, under either of its names; null if there is none."""
    for name in ("reasoning_content", "reasoning"):
        value = message.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return None


def call_ids(message: Mapping[str, Any]) -> tuple[str, ...]:
    """Ids of a message's tool calls, in order; those without are left out."""
    ids = (call.get("id") for call in _calls(message))
    return tuple(id for id in ids if isinstance(id, str) and id)


def call_places(message: Mapping[str, Any]) -> dict[str, int]:
    """Id of each tool call -> its place among the message's calls."""
    return {
        call["id"]: place for place, call in enumerate(_calls(message)) if isinstance(call.get("id"), str)
    }


def canonical_content(content: Any) -> Canonical:
    """Null, a string, or a list of at least two texts and other parts, or of one part that is no text."""
    if isinstance(content, str):
        return content or None
    if not isinstance(content, list):
        return content
    parts = [part for part in map(_canonical_part, content) if part not in ("", None)]
    if len(parts) == 1 and isinstance(parts[0], str):
        return parts[0]
    return parts or None


def without_volatile(content: Canonical) -> Canonical:
    """A system message's content without the lines that ``VOLATILE`` names."""
    if isinstance(content, list):
        return canonical_content([without_volatile(part) for part in content])
    if isinstance(content, str):
        for mark, pattern in VOLATILE.items():
            if mark in content:
                content = pattern.sub("", content)
    return content or None


def canonical_calls(message: Mapping[str, Any]) -> list[Canonical]:
    """``[name, arguments]`` of each tool call."""
    calls = []
    for call in _calls(message):
        function = call.get("function") or call.get("custom") or {}
        if not isinstance(function, dict):
            function = {}
        arguments = function.get("arguments", function.get("input"))
        calls.append([function.get("name"), canonical_arguments(arguments)])
    return calls


def canonical_arguments(arguments: Any) -> Canonical:
    """The value that the arguments stand for; ``[text]`` where they are no JSON object."""
    if isinstance(arguments, str):
        if not arguments.strip():
            return {}
        try:
            value = orjson.loads(arguments)
        except (orjson.JSONDecodeError, UnicodeEncodeError):
            return [arguments.strip()]
        arguments = value if isinstance(value, dict) else [arguments.strip()]
    if arguments is None:
        return {}
    try:
        return _whole_numbers(arguments)
    except RecursionError:
        return arguments


def canonical_tools(tools: Any) -> Canonical:
    """The tools in their order, which the prompt shows; null if there are none."""
    if not isinstance(tools, list) or not tools:
        return None
    return [_canonical_tool(tool) for tool in tools]


def digest(value: Canonical) -> bytes:
    """Of a JSON value, whatever the order of its keys."""
    return blake2b(dumps(value), digest_size=SIZE).digest()


def dumps(value: Canonical) -> bytes:
    """JSON with sorted keys; also of what has no UTF-8 (lone surrogates)."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except TypeError:
        pass
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    except (RecursionError, TypeError, ValueError):
        return b"too deep"  # such a request cannot be passed on either


def _combine(before: bytes, after: bytes) -> bytes:
    return blake2b(before + after, digest_size=SIZE).digest()


def _calls(message: Mapping[str, Any]) -> list[dict[str, Any]]:
    calls = message.get("tool_calls")
    return [call for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []


def _canonical_part(part: Any) -> Canonical:
    if not isinstance(part, dict):
        return part
    text = part.get("text")
    if isinstance(text, str) and part.get("type") in ("text", "input_text", "output_text", None):
        return text
    return {name: value for name, value in part.items() if value is not None and name != "cache_control"}


def _canonical_tool(tool: Any) -> Canonical:
    if not isinstance(tool, dict):
        return tool
    return {
        name: _canonical_tool(value) if name == "function" else value
        for name, value in tool.items()
        if value is not None and name not in IGNORED_TOOL_FIELDS
    }


def _whole_numbers(value: Canonical) -> Canonical:
    """``1.0`` becomes ``1``, as a harness in JavaScript writes it."""
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, dict):
        return {name: _whole_numbers(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_whole_numbers(item) for item in value]
    return value
