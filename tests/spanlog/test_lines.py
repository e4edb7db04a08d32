"""Lines and roles, one rule at a time, on calls that are told by their tokens alone."""

from __future__ import annotations

from typing import Any

import numpy as np

from spanlog.lineage import Lineage, LineageSpan, Role, analyse
from spanlog.lineage.span import Item
from spanlog.matching import Echo
from spanlog.states import Delivery

TOOLS = {"tools": b"tools"}


def call(id: str, prompt: list[int], completion: int, start: float, end: float, **fields: Any) -> LineageSpan:
    sampled = np.array([completion], np.int32)
    return LineageSpan(id, start, end, prompt=np.array(prompt, np.int32), completion=sampled, **fields)


def lines(*spans: LineageSpan) -> list[tuple[str, ...]]:
    return [line.span_ids for line in both_ways(*spans).lines]


def both_ways(*spans: LineageSpan) -> Lineage:
    lineage = analyse(spans)
    assert analyse(spans[::-1]) == lineage
    return lineage


def test_a_line_follows_what_was_worked_on_last() -> None:
    spans = [
        call("p", [1], 2, 0.0, 1.0),
        call("a", [1, 2, 3], 4, 2.0, 3.0),
        call("left", [1, 2, 5], 6, 4.0, 5.0),
        call("left on", [1, 2, 5, 6, 7], 8, 6.0, 7.0),
        call("a on", [1, 2, 3, 4, 9], 8, 8.0, 9.0),
    ]
    assert lines(*spans) == [("p", "a", "a on"), ("left", "left on")]


def test_a_line_keeps_to_its_thread() -> None:
    spans = [
        call("p", [1], 2, 0.0, 1.0, **TOOLS),
        call("a", [1, 2, 3], 4, 2.0, 3.0, **TOOLS),
        call("sub", [1, 2, 5], 6, 4.0, 5.0, thread="t", **TOOLS),
    ]
    assert lines(*spans) == [("p", "a"), ("sub",)]


def test_a_single_reply_beside_the_line_is_a_side_call() -> None:
    spans = [
        call("p", [1], 2, 0.0, 1.0),
        call("aside", [1, 2, 3], 4, 2.0, 3.0),
        call("on", [1, 2, 5], 6, 4.0, 5.0),
    ]
    lineage = both_ways(*spans)
    assert lineage.main == ("p", "on") and lineage.side == ("aside",)
    assert lineage.places["aside"].delivery == Delivery.SAMPLED


def test_the_main_line_has_tools_where_any_has() -> None:
    title, turn = call("title", [9], 8, 0.0, 1.0), call("turn", [1], 2, 0.5, 1.5, **TOOLS)
    lineage = both_ways(title, turn)
    assert lineage.main == ("turn",) and lineage.side == ("title",)


def test_an_agent_like_the_main_one_that_runs_between_its_turns_is_a_branch() -> None:
    spans = [
        call("m1", [1], 2, 0.0, 1.0, **TOOLS),
        call("s1", [7], 8, 2.0, 3.0, **TOOLS),
        call("s2", [7, 8, 9], 8, 3.5, 4.5, **TOOLS),
        call("m2", [1, 2, 3], 4, 6.0, 7.0, **TOOLS),
    ]
    assert lines(*spans) == [("m1", "m2"), ("s1", "s2")]


def test_the_same_agent_that_begins_anew_after_its_line_had_ended_goes_on_with_it() -> None:
    lineage = both_ways(call("m1", [1], 2, 0.0, 1.0, **TOOLS), call("m2", [7, 8], 4, 6.0, 7.0, **TOOLS))
    assert lineage.main == ("m1", "m2")
    place = lineage.places["m2"]
    assert (place.parent_id, place.fork_cause, place.fork_token) == ("m1", "history_dropped", 0)


def test_a_reply_counts_as_used_from_its_first_use_on() -> None:
    spans = [
        call("a", [1], 2, 0.0, 1.0),
        call("used here", [1, 2, 3], 4, 2.0, 3.0),
        call("again", [1], 5, 4.0, 5.0),
        call("and here", [1, 2, 6], 4, 8.0, 9.0),
    ]
    places = both_ways(*spans).places
    assert places["again"].delivery == Delivery.SAMPLED and places["again"].role != Role.SIDE


def test_a_known_history_in_other_tokens_is_a_fork_at_the_first_that_differs() -> None:
    said = Echo(text="words")
    history = {
        "items": (Item("user", b"u", None, (), None), Item("assistant", b"a", b"a", (), said)),
        "hashes": ("h1", "h2"),
    }
    first = call("a", [1, 5], 2, 0.0, 1.0, context="h2", reply=said, said=b"a")
    place = both_ways(first, call("b", [1, 6, 3], 4, 2.0, 3.0, **history)).places["b"]
    assert (place.parent_id, place.fork_cause, place.fork_token) == ("a", "drift", 1)
    recorded = {"parent_id": "a", "fork_cause": "closer_differs", "fork_token": 1}
    place = both_ways(first, call("b", [1, 6, 3], 4, 2.0, 3.0, **history, **recorded)).places["b"]
    assert (place.parent_id, place.fork_cause, place.fork_token) == ("a", "closer_differs", 1)
    place = both_ways(first, call("b", [1, 5, 2, 3], 4, 2.0, 3.0, **history)).places["b"]
    assert (place.parent_id, place.fork_cause, place.fork_token) == ("a", None, None)
