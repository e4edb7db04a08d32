"""Random conversations in the shapes of every dialect, with what harnesses do to a history between two calls."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st

KEYS = {"chat": "messages", "messages": "messages", "responses": "input", "gemini": "contents"}
"""Dialect -> the field that holds its history; text completions are apart."""
DIALECTS = [*KEYS, "completions", "token_ids"]

leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from([0, 1, -1, 1.0, 0.0, -0.0, 1e16, 0.1, 2**53 + 1, 2**63, -(2**63) - 1, 2**64, 10**30]),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["", "\x00", "\u2028", "12345678901234567890123", "é" * 40, "x" * 700]),
)
values = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@dataclass
class Turn:
    """One request, and which earlier turn it is stored as a change of."""

    body: dict[str, Any]
    parent: int | None
    prompt: list[int] = field(default_factory=list)
    completion: list[int] = field(default_factory=list)


def item(dialect: str, words: Any, role: str) -> Any:
    """One item of a history in the dialect's shape."""
    if dialect == "gemini":
        return {"role": role, "parts": [{"text": words}]}
    if dialect == "responses":
        return {"type": "message", "role": role, "content": [{"type": "input_text", "text": words}]}
    if dialect == "messages":
        return {"role": role, "content": [{"type": "text", "text": words}]}
    return {"role": role, "content": words}


def first_body(dialect: str, words: Any, extra: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = {
        **extra,
        "model": "m",
        "tools": [{"name": "run", "parameters": {"type": "object"}}],
    }
    if dialect == "completions":
        return body | {"prompt": f"Question: {words}\nThought:"}
    if dialect == "token_ids":
        return body | {"prompt": list(range(40))}
    system = [{"type": "text", "text": "header 1"}, {"type": "text", "text": "You are careful. " * 40}]
    return body | {"system": system, KEYS[dialect]: [item(dialect, words, "user")]}


Edit = Callable[[dict[str, Any], str, random.Random], None]


def history_of(body: dict[str, Any], dialect: str) -> Any:
    return body[KEYS.get(dialect, "prompt")]


def append(body: dict[str, Any], dialect: str, chance: random.Random) -> None:
    said = chance.choice(["yes", "no " * 300, f"{chance.random()}"])
    if dialect == "completions":
        body["prompt"] += f" {said}\nObservation: {chance.random()}\nThought:"
    elif dialect == "token_ids":
        body["prompt"] += [chance.randrange(1000) for _ in range(20)]
    else:
        history_of(body, dialect).append(item(dialect, said, "assistant"))
        history_of(body, dialect).append(item(dialect, f"result {chance.random()}", "user"))


def reserialise(body: dict[str, Any], dialect: str, chance: random.Random) -> None:
    """The same JSON value: keys in another order."""
    history = history_of(body, dialect)
    if isinstance(history, list) and history and isinstance(history[0], dict):
        place = chance.randrange(len(history))
        history[place] = dict(reversed(list(history[place].items())))


LOOK_ALIKE = [1, 1.0, True, 0, -0.0, 0.0, False, None]


def look_alike(body: dict[str, Any], dialect: str, chance: random.Random) -> None:
    """Another JSON value that Python takes for equal."""
    history = history_of(body, dialect)
    if isinstance(history, list) and history:
        place = chance.randrange(len(history))
        if isinstance(history[place], dict):
            history[place]["n"] = chance.choice(LOOK_ALIKE)
    body["n"] = chance.choice(LOOK_ALIKE)


def insert(body: dict[str, Any], dialect: str, chance: random.Random) -> None:
    history = history_of(body, dialect)
    if isinstance(history, list):
        new = 7 if dialect == "token_ids" else item(dialect, "a reminder", "user")
        history.insert(chance.randrange(len(history) + 1), new)


def delete(body: dict[str, Any], dialect: str, chance: random.Random) -> None:
    history = history_of(body, dialect)
    if isinstance(history, list):
        begin = chance.randrange(len(history) + 1)
        del history[begin : begin + chance.randrange(4)]
    else:
        body["prompt"] = history[chance.randrange(len(history) + 1) :]


def move_cache_control(body: dict[str, Any], dialect: str, chance: random.Random) -> None:
    history = history_of(body, dialect)
    if isinstance(history, list) and history and isinstance(history[-1], dict):
        for message in history:
            message.pop("cache_control", None)
        history[-1]["cache_control"] = {"type": "ephemeral"}


def change_fields(body: dict[str, Any], dialect: str, chance: random.Random) -> None:
    kind = chance.randrange(4)
    if kind == 0:
        body["tools"] = [*body.get("tools", []), {"name": f"tool{chance.random()}"}]
    elif kind == 1:
        body.pop("tools", None)
    elif kind == 2 and "system" in body:
        body["system"][0] = {"type": "text", "text": f"header {chance.random()}"}
    else:
        body["metadata"] = {"call": chance.random()}


EDITS: list[Edit] = [
    append,
    append,
    append,
    reserialise,
    look_alike,
    insert,
    delete,
    move_cache_control,
    change_fields,
]


@st.composite
def conversations(draw: st.DrawFn, max_turns: int = 7) -> tuple[str, list[Turn]]:
    """A dialect, and turns that each follow the last one, an earlier one, or nothing."""
    dialect = draw(st.sampled_from(DIALECTS))
    words = draw(values) if dialect in KEYS else draw(st.text(max_size=20))
    extra = draw(st.dictionaries(st.text(max_size=5), values, max_size=3))
    chance = random.Random(draw(st.integers(0, 2**32)))
    turns = [Turn(first_body(dialect, words, extra), None, [1, 2, 3], [4, 5])]
    for _ in range(draw(st.integers(0, max_turns))):
        parent = draw(st.sampled_from([len(turns) - 1, len(turns) - 1, chance.randrange(len(turns)), None]))
        before = turns[parent or 0]
        body = copy.deepcopy(before.body)
        for edit in draw(st.lists(st.sampled_from(EDITS), min_size=1, max_size=3)):
            edit(body, dialect, chance)
        kept = before.prompt + before.completion
        kept = kept[: chance.choice([len(kept), len(kept), chance.randrange(len(kept) + 1)])]
        new = [chance.randrange(3) for _ in range(chance.randrange(6))]
        turns.append(
            Turn(body, parent, kept + new, [chance.randrange(3) for _ in range(chance.randrange(4))])
        )
    return dialect, turns


def to_bytes(body: dict[str, Any], *, ascii_only: bool = False) -> bytes:
    return json.dumps(body, ensure_ascii=ascii_only).encode()


def same(one: Any, other: Any) -> bool:
    """Equal as JSON values: 1, 1.0 and true differ, and so do 0.0 and -0.0; the order of keys does not matter."""
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(value, other[name]) for name, value in one.items())
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return repr(one) == repr(other) if isinstance(one, float) else one == other
