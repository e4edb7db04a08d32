"""Lineage: known rollouts, under retries, lost replies, processes and any order of arrival; and its rules one by one."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanlog.lineage import LineageSpan, Role, analyse
from spanlog.states import Delivery
from tests.spanlog.agents import Truth, rollouts

UNHURRIED = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)


@UNHURRIED
@given(rollouts(), st.integers(0, 99))
def test_a_known_rollout_is_found_again(rollout: tuple[list[LineageSpan], Truth], seed: int) -> None:
    spans, truth = rollout
    random.Random(seed).shuffle(spans)
    lineage = analyse(spans)
    places = lineage.places
    assert list(lineage.main) == truth.main
    assert sorted(list(line.span_ids) for line in lineage.branches) == sorted(truth.branches)
    assert sorted(lineage.side) == sorted(truth.side)
    superseded = {id for id, place in places.items() if place.delivery == Delivery.SUPERSEDED}
    assert superseded == truth.superseded.keys()
    assert {id for id, place in places.items() if place.fork_cause == "compaction"} == truth.compacted
    roles = {id: places[id].role for id in truth.main}
    assert set(roles.values()) == {Role.MAIN}
    forks = {id for id, place in places.items() if place.fork_cause} - truth.compacted
    assert not {id for id in forks if id in places and places[id].line is not None}


@UNHURRIED
@given(rollouts(), st.integers(0, 99))
def test_the_order_of_arrival_changes_nothing(rollout: tuple[list[LineageSpan], Truth], seed: int) -> None:
    spans, _ = rollout
    first = analyse(spans)
    random.Random(seed).shuffle(spans)
    assert analyse(spans) == first


@UNHURRIED
@given(rollouts())
def test_each_call_has_one_place(rollout: tuple[list[LineageSpan], Truth]) -> None:
    spans, _ = rollout
    lineage = analyse(spans)
    assert lineage.places.keys() == {span.id for span in spans}
    on_lines = Counter(id for line in lineage.lines for id in line.span_ids)
    assert not on_lines or max(on_lines.values()) == 1
    for number, line in enumerate(lineage.lines):
        assert {lineage.places[id].line for id in line.span_ids} == {number}
        assert {lineage.places[id].role for id in line.span_ids} == {line.role}
    for place in lineage.places.values():
        assert place.line is not None or place.role == Role.SIDE or place.delivery in (
            Delivery.SUPERSEDED, Delivery.ABORTED, Delivery.LATE, Delivery.SAMPLED
        )  # fmt: skip
