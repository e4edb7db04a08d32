"""Random conversations, the ways in which harnesses write the same one again, and changes of what one means."""

from __future__ import annotations

import copy
import json
from typing import Any

from hypothesis import strategies as st

Message = dict[str, Any]
WORDS = st.text("ab <>\n\"'\\äé漢😀{}:,.", min_size=1, max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.floats(-1e9, 1e9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=5,
)
ARGUMENTS = st.dictionaries(WORDS, VALUES, max_size=3)
BILLING = "x-anthropic-billing-header: cc_version=2.1.332.{hash}; cc_entrypoint=sdk-cli;"


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """A history in plain form that ends in a reply: system, user, then replies with calls and their results."""
    messages: list[Message] = [{"role": "system", "content": draw(WORDS)}] if draw(st.booleans()) else []
    messages.append({"role": "user", "content": draw(WORDS)})
    for turn in range(draw(st.integers(1, 4))):
        messages.append(draw(replies(turn)))
        for call in messages[-1].get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": draw(WORDS)})
        if not messages[-1].get("tool_call_id") or draw(st.booleans()):
            messages.append({"role": "user", "content": draw(WORDS)})
    return [*messages, draw(replies(99))]


@st.composite
def replies(draw: st.DrawFn, turn: int) -> Message:
    """A reply as an engine gives it."""
    message: Message = {"role": "assistant", "content": "said " + draw(WORDS)}
    if draw(st.booleans()):
        message["reasoning"] = draw(WORDS)
    if draw(st.booleans()):
        message["tool_calls"] = [
            {
                "id": f"call_{turn}_{number}",
                "type": "function",
                "function": {
                    "name": draw(st.sampled_from(["bash", "edit"])),
                    "arguments": json.dumps(draw(ARGUMENTS)),
                },
            }
            for number in range(draw(st.integers(1, 2)))
        ]
    return message


@st.composite
def reworded(draw: st.DrawFn, messages: list[Message]) -> list[Message]:
    """The same history as some harness sends it back."""
    renamed = draw(st.booleans())
    return [_reword(draw, copy.deepcopy(message), renamed) for message in messages]


def _reword(draw: st.DrawFn, message: Message, renamed: bool) -> Message:
    role = message["role"]
    if role == "system":
        if draw(st.booleans()):
            message["role"] = "developer"
        if draw(st.booleans()):
            line = {"type": "text", "text": BILLING.format(hash=draw(st.integers(0, 999)))}
            message["content"] = [line, {"type": "text", "text": message["content"]}]
    if role == "assistant":
        _reword_reply(draw, message, renamed)
    if role == "tool" and renamed:
        message["tool_call_id"] = message["tool_call_id"].replace("_", "")
    if isinstance(message["content"], str) and draw(st.booleans()):
        part: dict[str, Any] = {"type": "text", "text": message["content"]}
        if draw(st.booleans()):
            part["cache_control"] = {"type": "ephemeral"}
        message["content"] = [part, {"type": "text", "text": ""}] if draw(st.booleans()) else [part]
    if draw(st.booleans()):
        message |= {"name": "user", "refusal": None, "provider_specific_fields": {"refusal": None}}
    names = draw(st.permutations(list(message)))
    return {name: message[name] for name in names}


def _reword_reply(draw: st.DrawFn, message: Message, renamed: bool) -> None:
    if thought := message.pop("reasoning", None):
        name = draw(st.sampled_from([None, "reasoning", "reasoning_content"]))
        if name:
            message[name] = thought
    if draw(st.booleans()):
        message["content"] = "\n" + message["content"] + " \n"
    for call in message.get("tool_calls", ()):
        call["function"]["arguments"] = _rewrite_json(draw, call["function"]["arguments"])
        if renamed:
            call["id"] = call["id"].replace("_", "")
        call["index"] = 0


def _rewrite_json(draw: st.DrawFn, arguments: str) -> str:
    value = json.loads(arguments)
    if not value and draw(st.booleans()):
        return ""
    value = {name: value[name] for name in draw(st.permutations(list(value)))}
    return json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
        indent=draw(st.sampled_from([None, 2])),
    )


@st.composite
def altered(draw: st.DrawFn, messages: list[Message]) -> list[Message]:
    """A history that means something else: one thing in it was changed, removed, added or moved."""
    messages = copy.deepcopy(messages)
    index = draw(st.integers(0, len(messages) - 1))
    message = messages[index]
    calls = message.get("tool_calls") or []
    kinds = (
        ["text", "role", "insert"]
        + ["remove"] * (len(messages) > 1)
        + ["argument", "tool", "call"] * bool(calls)
    )
    if calls and index == len(messages) - 1:
        kinds.remove("text")  # beside the calls of the last reply: matching decides, not the hash
    kind = draw(st.sampled_from(kinds))
    if kind == "text":
        message["content"] = "other " + message["content"]
    elif kind == "role":
        message["role"] = "user" if message["role"] != "user" else "system"
    elif kind == "insert":
        messages.insert(index, {"role": "user", "content": "more"})
    elif kind == "remove":
        del messages[index]
    elif kind == "argument":
        function = draw(st.sampled_from(calls))["function"]
        function["arguments"] = json.dumps(json.loads(function["arguments"]) | {"new key": 1})
    elif kind == "tool":
        draw(st.sampled_from(calls))["function"]["name"] = "read"
    else:
        calls.append(copy.deepcopy(calls[0]))
    return messages
