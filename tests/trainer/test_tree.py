"""I7: each sampled token of each trainable span is a target exactly once, in the context in which it was sampled."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.samples import Turn, build_samples, superseded
from trainer.data.tree import Call, build_rows

TOKENS = st.lists(st.integers(1, 3), min_size=1, max_size=4)


@st.composite
def call_trees(draw: st.DrawFn) -> list[Call]:
    """Calls of one rollout: fresh prompts, continuations, branches, repeats with other or equal completions."""
    calls: list[Call] = []
    for number in range(draw(st.integers(1, 8))):
        kind = draw(st.sampled_from(["fresh", "continue", "continue", "repeat"])) if calls else "fresh"
        prompt = draw(TOKENS)
        if kind != "fresh":
            before = draw(st.sampled_from(calls))
            start = before.prompt.tolist()
            if kind == "continue":
                cut = draw(st.integers(0, len(before.completion)))
                prompt = [*start, *before.completion.tolist()[: len(before.completion) - cut], *prompt]
            else:
                prompt = start
        calls.append(Call(f"s{number}", np.array(prompt, np.int32), np.array(draw(TOKENS), np.int32)))
    return calls


def expected_targets(calls: list[Call]) -> Counter[tuple[str, tuple[int, ...]]]:
    """By brute force: (call, the whole sequence up to and with the target) for each sampled token."""
    return Counter(
        (call.id, (*call.prompt.tolist(), *call.completion.tolist()[: place + 1]))
        for call in calls
        for place in range(len(call.completion))
    )


@settings(max_examples=300, deadline=None)
@given(call_trees(), st.randoms(use_true_random=False))
def test_each_sampled_token_is_a_target_once_in_its_own_context(calls: list[Call], random: object) -> None:
    rows = build_rows(calls)
    found = Counter(
        (calls[owner].id, tuple(row.tokens[: place + 1].tolist()))
        for row in rows
        for place, owner in enumerate(row.owners)
        if owner >= 0
    )
    assert found == expected_targets(calls)
    shuffled = calls[:]
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert described(build_rows(shuffled), shuffled) == described(rows, calls)


def described(rows: list, calls: list[Call]) -> set[tuple]:
    return {
        (tuple(row.tokens.tolist()), tuple(calls[owner].id if owner >= 0 else "" for owner in row.owners))
        for row in rows
    }


@settings(max_examples=200, deadline=None)
@given(call_trees())
def test_a_shared_prefix_makes_no_more_rows_than_there_are_leaves(calls: list[Call]) -> None:
    whole = {(*call.prompt.tolist(), *call.completion.tolist()) for call in calls}
    leaves = {one for one in whole if not any(other != one and other[: len(one)] == one for other in whole)}
    spent = Counter(
        (*call.prompt.tolist(), *call.completion.tolist()[: n + 1])
        for call in calls
        for n in range(len(call.completion))
    )
    rows = build_rows(calls)
    assert {tuple(row.tokens.tolist()) for row in rows} >= leaves
    if max(spent.values()) == 1:  # no place is wanted twice
        assert len(rows) == len(leaves)


def test_a_conversation_is_one_row() -> None:
    first = Call("a", np.array([1, 2], np.int32), np.array([3, 4], np.int32))
    second = Call("b", np.array([1, 2, 3, 4, 5], np.int32), np.array([6], np.int32))
    (row,) = build_rows([second, first])
    assert row.tokens.tolist() == [1, 2, 3, 4, 5, 6]
    assert row.owners.tolist() == [-1, -1, 1, 1, -1, 0]


def turn(
    id: str, prompt: list[int], completion: list[int], start: float, end: float, **fields: object
) -> Turn:
    size = len(completion)
    return Turn(
        id,
        np.array(prompt, np.int32),
        np.array(completion, np.int32),
        np.full(size, -1.0, np.float32),
        np.zeros(size, np.int32),
        np.zeros(size, np.int32),
        1.0,
        start,
        end,
        **fields,  # type: ignore[arg-type]
    )


def test_a_retry_takes_the_place_of_a_reply_that_nobody_used() -> None:
    lost = turn("lost", [1, 2], [3], 0.0, 1.0)
    retry = turn("retry", [1, 2], [4], 1.5, 2.0)
    later = turn("later", [1, 2, 4, 5], [6], 3.0, 4.0)
    assert superseded([later, retry, lost]) == {"lost"}
    samples, counts = build_samples(0, [later, retry, lost])
    assert counts["superseded"] == 1 and counts["used"] == 2 and counts["tokens_excluded"] == 1
    assert [sample.tokens.tolist() for sample in samples] == [[1, 2, 4, 5, 6]]


def test_the_reply_that_a_later_prompt_contains_stands() -> None:
    used = turn("used", [1, 2], [3], 0.0, 1.0)
    vain = turn("vain", [1, 2], [4], 1.5, 2.0)
    later = turn("later", [1, 2, 3, 5], [6], 3.0, 4.0)
    assert superseded([used, vain, later]) == {"vain"}


def test_the_last_of_several_unused_retries_stands() -> None:
    tries = [turn(f"t{n}", [1, 2], [3 + n], n, n + 0.5) for n in range(3)]
    assert superseded(tries) == {"t0", "t1"}


def test_parallel_samples_and_branches_both_stand() -> None:
    left, right = turn("left", [1, 2], [3], 0.0, 2.0), turn("right", [1, 2], [3], 0.5, 2.0)
    assert superseded([left, right]) == set()
    samples, _ = build_samples(0, [left, right])
    assert [sample.target_count for sample in samples] == [
        1,
        1,
    ]  # the same token twice: two targets, two rows
    early, late = turn("early", [1, 2], [3], 0.0, 1.0), turn("late", [1, 2], [4], 2.0, 3.0)
    children = [turn("c1", [1, 2, 3, 9], [5], 5.0, 6.0), turn("c2", [1, 2, 4, 9], [5], 5.0, 6.0)]
    assert superseded([early, late, *children]) == set()


def test_what_cannot_be_a_target_is_counted_and_left_out() -> None:
    turns = [
        turn("ok", [1], [2], 0.0, 1.0),
        turn("late", [1, 2, 3], [4], 1.0, 2.0, excluded="late", stands=False),
        turn("forced", [1, 2, 5], [6], 2.0, 3.0, excluded="untrainable:forced_tool_choice"),
        turn("empty", [1, 2, 7], [], 3.0, 4.0),
        turn("unprompted", [], [6], 3.0, 4.0),
    ]
    samples, counts = build_samples(3, turns)
    assert [sample.span_ids for sample in samples] == [("ok",)]
    assert samples[0].rollout == 3
    assert counts == Counter(
        {
            "used": 1,
            "late": 1,
            "untrainable:forced_tool_choice": 1,
            "empty": 1,
            "no_prompt_tokens": 1,
            "tokens_used": 1,
            "tokens_excluded": 3,
        }
    )


def test_an_aborted_retry_does_not_take_a_place() -> None:
    good = turn("good", [1, 2], [3], 0.0, 1.0)
    aborted = turn("aborted", [1, 2], [4], 2.0, 3.0, excluded="aborted", stands=False)
    _, counts = build_samples(0, [good, aborted])
    assert counts["used"] == 1 and counts["superseded"] == 0


def test_an_untrainable_retry_does() -> None:
    lost = turn("lost", [1, 2], [3], 0.0, 1.0)
    retry = turn("retry", [1, 2], [4], 2.0, 3.0, excluded="untrainable:unknown_version")
    samples, counts = build_samples(0, [lost, retry])
    assert samples == [] and counts["superseded"] == 1


def test_a_reply_without_tokens_gives_its_place_to_the_retry() -> None:
    """It has no tokens that a later prompt could contain; its own prompt does not count as one."""
    lost = turn("lost", [1, 2], [], 0.0, 1.0, excluded="untrainable:token_ids_missing")
    retry = turn("retry", [1, 2], [4], 2.0, 3.0)
    samples, counts = build_samples(0, [lost, retry])
    assert [sample.span_ids for sample in samples] == [("retry",)] and counts["superseded"] == 0


@settings(max_examples=100, deadline=None)
@given(call_trees(), st.randoms(use_true_random=False))
def test_samples_do_not_depend_on_the_order_of_spans(calls: list[Call], random: object) -> None:
    turns = [
        turn(call.id, call.prompt.tolist(), call.completion.tolist(), n % 3, n % 3 + 1.5)
        for n, call in enumerate(calls)
    ]
    samples, counts = build_samples(0, turns)
    random.shuffle(turns)  # type: ignore[attr-defined]
    again, counts_again = build_samples(0, turns)
    assert counts == counts_again
    assert {(s.tokens.tobytes(), s.targets.tobytes(), s.span_ids) for s in samples} == {
        (s.tokens.tobytes(), s.targets.tobytes(), s.span_ids) for s in again
    }
