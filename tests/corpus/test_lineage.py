"""Lineage of recorded traffic: each file's turns, sub-agents, side calls, retries and forks are those found by hand."""

from __future__ import annotations

import random

import pytest

from spanlog.lineage import Lineage, LineageSpan, Role, analyse
from tests.corpus.expected_lineage import NAMES, Expected, expected
from tests.corpus.replay import replay


def spans_of(name: str) -> list[LineageSpan]:
    case = expected(name)
    return replay(name, failed=case.failed, at_once=case.at_once, says=case.says)


def found(lineage: Lineage, case: Expected) -> Expected:
    """The lineage in the terms of the table; how the recording came about is taken over."""
    places = sorted((int(id), place) for id, place in lineage.places.items())
    return Expected(
        main=tuple(map(int, lineage.main)),
        branches=tuple(tuple(map(int, line.span_ids)) for line in lineage.branches),
        side=tuple(map(int, lineage.side)),
        duplicates={id: int(place.duplicate_of) for id, place in places if place.duplicate_of},
        forks={id: place.fork_cause for id, place in places if place.fork_cause},
        failed=case.failed,
        at_once=case.at_once,
        says=case.says,
    )


@pytest.mark.parametrize("name", NAMES)
def test_recorded_files(name: str) -> None:
    case = expected(name)
    assert found(analyse(spans_of(name)), case) == case


@pytest.mark.parametrize("name", NAMES)
def test_in_any_order_of_arrival(name: str) -> None:
    spans = spans_of(name)
    whole = analyse(spans)
    for seed in range(5):
        random.Random(seed).shuffle(spans)
        assert analyse(spans) == whole


def test_a_corpus_with_every_situation() -> None:
    """A file that is lost, or a rule that lets all pass as main, must not go unseen."""
    assert len(NAMES) >= 41
    roles = {place.role for name in NAMES for place in analyse(spans_of(name)).places.values()}
    assert roles == set(Role)
