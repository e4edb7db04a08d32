"""A reply that came to nothing gives its place to the retry; samples that were asked for together both stand.

Told by tokens alone, as for text completions: the calls here have no messages.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from spanlog.lineage import LineageSpan, Role, analyse
from spanlog.states import Delivery, SpanStatus


def call(
    id: str, prompt: list[int], completion: list[int] | None, start: float, end: float, **fields: Any
) -> LineageSpan:
    sampled = None if completion is None else np.array(completion, np.int32)
    return LineageSpan(id, start, end, prompt=np.array(prompt, np.int32), completion=sampled, **fields)


def superseded(*spans: LineageSpan) -> dict[str, str | None]:
    """Id of each superseded call -> the one that took its place; the same in both orders of arrival."""
    lineage = analyse(spans)
    assert analyse(spans[::-1]) == lineage
    return {
        id: place.duplicate_of
        for id, place in lineage.places.items()
        if place.delivery == Delivery.SUPERSEDED
    }


LOST, RETRY = call("lost", [1, 2], [3], 0.0, 1.0), call("retry", [1, 2], [4], 1.5, 2.0)


def test_a_retry_takes_the_place_of_a_reply_that_nobody_used() -> None:
    assert superseded(LOST, RETRY, call("later", [1, 2, 4, 5], [6], 3.0, 4.0)) == {"lost": "retry"}


def test_the_reply_that_a_later_prompt_contains_stands() -> None:
    assert superseded(LOST, RETRY, call("later", [1, 2, 3, 5], [6], 3.0, 4.0)) == {"retry": "lost"}


def test_the_last_of_several_unused_retries_stands() -> None:
    tries = [call(f"t{n}", [1, 2], [3 + n], n, n + 0.5) for n in range(3)]
    assert superseded(*tries) == {"t0": "t2", "t1": "t2"}


@pytest.mark.parametrize(("gap", "lost"), [(0.5, {}), (5.0, {"left": "right"})])
def test_samples_asked_for_together_both_stand_a_call_that_was_given_up_does_not(
    gap: float, lost: dict[str, str]
) -> None:
    left, right = call("left", [1, 2], [3], 0.0, 9.0), call("right", [1, 2], [3], gap, 9.0)
    assert superseded(left, right) == lost


def test_of_two_overlapping_calls_the_one_that_was_used_stands() -> None:
    slow, retry = call("slow", [1, 2], [3], 0.0, 9.0), call("retry", [1, 2], [4], 5.0, 8.0)
    assert superseded(slow, retry, call("later", [1, 2, 4, 5], [6], 10.0, 11.0)) == {"slow": "retry"}


def test_two_that_were_both_used_both_stand() -> None:
    early, late = call("early", [1, 2], [3], 0.0, 1.0), call("late", [1, 2], [4], 2.0, 3.0)
    children = [call("c1", [1, 2, 3, 9], [5], 5.0, 6.0), call("c2", [1, 2, 4, 9], [5], 5.0, 6.0)]
    assert superseded(early, late, *children) == {}


def test_an_agent_that_comes_to_the_same_place_again_is_no_retry() -> None:
    """It had used the first reply before."""
    later = call("later", [1, 2, 3, 5], [6], 3.0, 4.0)
    again = call("again", [1, 2], [3], 5.0, 6.0)
    assert superseded(LOST, later, again) == {}
    places = analyse([LOST, later, again]).places
    assert places["again"].role == Role.MAIN and places["lost"].delivery == Delivery.ADOPTED


@pytest.mark.parametrize(
    "fields",
    [
        {"status": SpanStatus.ABORTED, "delivery": Delivery.ABORTED},
        {"status": SpanStatus.UPSTREAM_ERROR},
        {"delivery": Delivery.LATE},
    ],
)
def test_a_retry_that_failed_takes_no_place(fields: dict[str, str]) -> None:
    lineage = analyse([LOST, call("vain", [1, 2], [4], 2.0, 3.0, **fields)])
    assert lineage.main == ("lost",)
    assert lineage.places["vain"].duplicate_of == "lost"
    assert lineage.places["vain"].delivery == fields.get("delivery", Delivery.SAMPLED)


def test_a_reply_without_tokens_gives_its_place_to_the_retry() -> None:
    """It has no tokens that a later prompt could contain; its own prompt does not count as one."""
    assert superseded(call("empty", [1, 2], [], 0.0, 1.0), RETRY) == {"empty": "retry"}


def test_threads_do_not_retry_for_one_another() -> None:
    one, other = (
        call(id, [1, 2], [3], start, start + 1.0, thread=id) for id, start in (("one", 0.0), ("other", 5.0))
    )
    assert superseded(one, other) == {}
