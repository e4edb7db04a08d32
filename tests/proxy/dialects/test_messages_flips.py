"""Strings and blocks, and `cache_control` that moves, mean the same to the Messages dialect."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.proxy.dialects.test_messages_requests import TOOL, assistant, body, decode, result, text, use

_texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
_blocks = st.lists(_texts.map(text), min_size=1, max_size=3)
_contents = _texts | _blocks


@st.composite
def _conversations(draw: st.DrawFn) -> dict[str, Any]:
    turns: list[Any] = [draw(_contents)]
    for turn in range(draw(st.integers(0, 3))):
        calls = [use(f"c{turn}{i}", text=draw(_texts)) for i in range(draw(st.integers(0, 2)))]
        turns.append(assistant(*draw(st.lists(_texts, max_size=2)), *calls))
        if draw(st.booleans()):
            turns.append({"role": "system", "content": draw(_contents)})
        blocks = [*(result(call["id"], draw(_contents)) for call in calls), *draw(_blocks)]
        turns.append(draw(st.permutations(blocks)))
    return body(*turns, system=draw(_contents), tools=[TOOL])


def _flip(value: Any, data: st.DataObject) -> Any:
    """The same request: a single text as a string or a block, ``cache_control`` here or there."""
    if isinstance(value, list):
        return [_flip(item, data) for item in value]
    if not isinstance(value, dict):
        return value
    schemas = ("input", "input_schema")
    flipped = {name: item if name in schemas else _flip(item, data) for name, item in value.items()}
    for name in ("content", "system"):
        content = flipped.get(name)
        if isinstance(content, str) and data.draw(st.booleans()):
            flipped[name] = [text(content)]
        elif isinstance(content, list) and [block.get("type") for block in content] == ["text"]:
            flipped[name] = content[0]["text"] if data.draw(st.booleans()) else content
    if ("type" in value or "input_schema" in value) and data.draw(st.booleans()):
        flipped["cache_control"] = {"type": "ephemeral"}
    return flipped


@settings(deadline=None)
@given(_conversations(), st.data())
def test_strings_blocks_and_cache_control_make_no_difference(
    document: dict[str, Any], data: st.DataObject
) -> None:
    before = copy.deepcopy(document)
    flipped = _flip(document, data)
    assert document == before
    assert decode(flipped).hub == decode(document).hub
    assert decode(flipped).ignored == []
