"""Delta storage [I5]: a request is kept as its change against the parent span's request. Pure.

An agent sends its whole history with each call, so that whole requests cost a conversation of T turns O(T^2). Here a
JSON object of any dialect is taken apart into the list that grows (its *history*), its tools, and the other fields; of
each, only what the parent has not is kept. What is read back equals the body as a JSON value. Parts are compared by
digests of a canonical form, so that a parent need not be read back whole; 1, 1.0 and true differ in it, the order of
keys does not matter. A body that does not survive this (no JSON object, nested too deeply, with lone surrogates, or
without a history) is stored whole, byte for byte.

What is stored, all JSON:

- *patch*: ``{"set": {name: value}, "unset": [name], "lists": {name: parts}}``, each key only where it is not empty;
  ``"key"`` names the history where neither its column does nor it is ``messages``.
- *items*: the history from the shared items on, as an array; or ``{"parts": parts}``, where it goes on with what the
  parent has elsewhere (a harness that changes an early message, or drops the middle); with ``"text": true`` the items
  are the lines of a history that is one string.
- *parts*: an array of ``[start, count]`` (items of the parent's list) and ``{"items": [...]}`` (new ones).
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from spanlog.arrays import Ints

HISTORIES = ("messages", "input", "contents", "prompt")
"""Fields that hold the history: chat and messages, responses, Gemini, text completions. The first that is there."""
HUB_KEY = "messages"
TOOLS = "tools"
LONG_NUMBER = b"0" * 19
"""Where all digits are made 0: what may be an integer of more than 64 bits, which orjson would read as a float."""
DIGITS = bytes(ord("0") if chr(byte).isascii() and chr(byte).isdigit() else ord(" ") for byte in range(256))
DIGEST_BYTES = 32
WORTH_COPYING = DIGEST_BYTES
"""Bytes of digests from which a run of items in the middle is copied rather than stored again: one long item, or several
short ones."""

Digest = bytes
Run = tuple[int, int, int]
"""Items of the new list from ``first`` on, ``count`` of them; ``start`` in the parent's list, -1: it has them not."""


@dataclass(frozen=True)
class Digests:
    """A document's parts, by which equal ones are found in the next."""

    fields: Mapping[str, Digest | tuple[Digest, ...]] = field(default_factory=dict)
    """Of each field but the history; of a list, one for each item."""
    items: tuple[Digest, ...] = ()
    """Of the history's items."""


NOTHING = Digests()


@dataclass(frozen=True)
class Parent:
    """A committed span, as far as another one is stored as a change of it."""

    id: str
    rollout_id: str
    tokens: Ints | None
    """int32 [prompt + completion]; null: the engine gave none."""
    request: Digests = NOTHING
    hub: Digests = NOTHING

    @property
    def request_items(self) -> tuple[Digest, ...]:
        return self.request.items

    @property
    def hub_items(self) -> tuple[Digest, ...]:
        return self.hub.items


@dataclass(frozen=True)
class Document:
    """A JSON object, taken apart. Values are shared between the documents of a conversation: never change them."""

    fields: dict[str, Any] = field(default_factory=dict)
    key: str | None = None
    """The field that holds the history."""
    items: list[Any] = field(default_factory=list)
    text: bool = False
    """The history is a string, the items are its lines."""

    def value(self) -> dict[str, Any]:
        if self.key is None:
            return dict(self.fields)
        return {**self.fields, self.key: "".join(self.items) if self.text else self.items}


@dataclass(frozen=True)
class Delta:
    """A document as it is stored. Bytes are JSON."""

    key: str | None
    patch: bytes
    shared: int
    """Leading items of the parent's history that are the document's, too."""
    items: bytes | None
    tools: bytes | None
    digests: Digests
    """Of the whole document: what its own children are compared with."""


EMPTY = Document()


def parse(raw: bytes) -> Document | None:
    """A body taken apart; null where it has to be stored whole."""
    try:
        value = _exact_loads(raw) if LONG_NUMBER in raw.translate(DIGITS) else orjson.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    document = take_apart(value)
    return None if document.key is None else document


def _exact_loads(raw: bytes) -> Any:
    """With integers of any size. Raises ValueError where a number is none that JSON can write."""

    def refuse(word: str) -> Any:
        raise ValueError(f"{word} is no JSON number")

    def finite(digits: str) -> float:
        return number if math.isfinite(number := float(digits)) else refuse(digits)

    return json.loads(raw, parse_constant=refuse, parse_float=finite)


def take_apart(value: dict[str, Any]) -> Document:
    """``value`` with its history, if it has one, apart."""
    for key in HISTORIES:
        history = value.get(key)
        if isinstance(history, list | str):
            fields = {name: item for name, item in value.items() if name != key}
            text = isinstance(history, str)
            return Document(fields, key, history.splitlines(keepends=True) if text else history, text)
    return Document(value)


def encode(document: Document, before: Digests, *, named: bool) -> Delta:
    """The document's change against one with the digests ``before``. Raises ValueError if it is no JSON value.

    ``named``: the history's key is kept elsewhere, and need not be in the patch.
    """
    digests = digest_document(document)
    patch, tools = encode_fields(document.fields, digests.fields, before.fields)
    if not named and document.key not in (None, HUB_KEY):
        patch["key"] = document.key
    runs = find_runs(before.items, digests.items)
    shared = 0
    if runs and runs[0][1] == 0:  # begins with the parent's first item
        shared = runs[0][2]
        runs = runs[1:]
    items: Any = None
    if document.text or any(start >= 0 for _, start, _ in runs):
        items = {"parts": list(to_parts(runs, document.items))}
        if document.text:
            items["text"] = True
    elif runs or (shared == 0 and document.key is not None):
        items = document.items[shared:]
    return Delta(
        key=document.key,
        patch=dumps(patch),
        shared=shared,
        items=None if items is None else dumps(items),
        tools=tools,
        digests=digests,
    )


def encode_fields(
    fields: Mapping[str, Any], after: Mapping[str, Any], before: Mapping[str, Any]
) -> tuple[dict[str, Any], bytes | None]:
    """The patch of all fields, and the tools where they changed."""
    patch: dict[str, Any] = {}
    tools = None
    for name, value in fields.items():
        old, new = before.get(name), after[name]
        if old == new:
            continue
        if name == TOOLS:
            tools = dumps(value)
            continue
        if isinstance(old, tuple) and isinstance(new, tuple):
            runs = find_runs(old, new)
            if any(start >= 0 for _, start, _ in runs):
                patch.setdefault("lists", {})[name] = list(to_parts(runs, value))
                continue
        patch.setdefault("set", {})[name] = value
    if gone := [name for name in before if name not in fields]:
        patch["unset"] = gone
    return patch, tools


def decode(
    before: Document, key: str | None, patch: bytes, shared: int, items: bytes | None, tools: bytes | None
) -> Document:
    """The document of a stored change. ``before`` is the parent's, empty without one; the rest as in ``Delta``."""
    change = json.loads(patch)
    gone = frozenset(change.get("unset", ()))
    fields = {name: value for name, value in before.fields.items() if name not in gone}
    for name, parts in change.get("lists", {}).items():
        fields[name] = from_parts(parts, before.fields[name])
    fields |= change.get("set", {})
    if tools is not None:
        fields[TOOLS] = json.loads(tools)
    if items is None and shared == 0:
        return Document(fields)
    stored = [] if items is None else json.loads(items)
    text = False
    if isinstance(stored, dict):
        text = stored.get("text", False)
        stored = from_parts(stored["parts"], before.items)
    return Document(fields, key or change.get("key", HUB_KEY), before.items[:shared] + stored, text)


def find_runs(before: Sequence[Digest], after: Sequence[Digest]) -> list[Run]:
    """``after`` as runs of items that ``before`` has in this order, and of such that it has not."""
    length = min(len(before), len(after))
    first = length
    if before[:length] != after[:length]:
        first = next(place for place in range(length) if before[place] != after[place])
    runs: list[Run] = [(0, 0, first)] if first else []
    if first == len(after):
        return runs
    places = (
        {value: place for place, value in reversed(list(enumerate(before)))} if first < len(before) else {}
    )
    begin = first  # of the items that no run holds yet
    for at, start, count in raw_runs(before, after, places, first):
        if start >= 0 and sum(map(len, after[at : at + count])) >= WORTH_COPYING:
            if begin < at:
                runs.append((begin, -1, at - begin))
            runs.append((at, start, count))
            begin = at + count
    if begin < len(after):
        runs.append((begin, -1, len(after) - begin))
    return runs


def raw_runs(
    before: Sequence[Digest], after: Sequence[Digest], places: Mapping[Digest, int], first: int
) -> Iterator[Run]:
    """Every run from ``first`` on, however short."""
    while first < len(after):
        start, count = places.get(after[first], -1), 1
        while (
            start >= 0
            and first + count < len(after)
            and start + count < len(before)
            and before[start + count] == after[first + count]
        ):
            count += 1
        yield first, start, count
        first += count


def to_parts(runs: Sequence[Run], items: Sequence[Any]) -> Iterator[Any]:
    for first, start, count in runs:
        yield [start, count] if start >= 0 else {"items": list(items[first : first + count])}


def from_parts(parts: Sequence[Any], before: Sequence[Any]) -> list[Any]:
    items: list[Any] = []
    for part in parts:
        if isinstance(part, dict):
            items += part["items"]
        else:
            start, count = part
            items += before[start : start + count]
    return items


def digest_document(document: Document) -> Digests:
    """Raises ValueError if it is no JSON value."""
    fields = {
        name: tuple(map(digest, value)) if isinstance(value, list) else digest(value)
        for name, value in document.fields.items()
    }
    return Digests(fields, tuple(map(digest, document.items)))


def digest(value: Any) -> Digest:
    """Equal for equal JSON values, types included: the canonical form where it is short, else its BLAKE2b-256."""
    try:
        data = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        data = _json_dumps(value, sort_keys=True)
    return data if len(data) < DIGEST_BYTES else hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def dumps(value: Any) -> bytes:
    """Compact JSON. Raises ValueError if it is no JSON value."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return _json_dumps(value)


def _json_dumps(value: Any, sort_keys: bool = False) -> bytes:
    """For what orjson does not write: integers of more than 64 bits."""
    try:
        text = json.dumps(
            value, ensure_ascii=False, allow_nan=False, sort_keys=sort_keys, separators=(",", ":")
        )
        orjson.dumps(orjson.loads(text))  # refuses what is nested so deeply that reading it back may fail
        return text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"not to be stored as a change: {error}") from error


def shared_length(before: Ints, after: NDArray[np.integer]) -> int:
    """Length of the longest common prefix of two token arrays."""
    length = min(before.size, after.size)
    different = np.flatnonzero(before[:length] != after[:length])
    return int(different[0]) if different.size else length
