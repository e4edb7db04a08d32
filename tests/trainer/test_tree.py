"""I7: each sampled token of each trainable span is a target exactly once, in the context in which it was sampled."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.data.samples import Turn, build_samples
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


def turn(id: str, prompt: list[int], completion: list[int], excluded: str | None = None) -> Turn:
    size = len(completion)
    return Turn(
        id,
        np.array(prompt, np.int32),
        np.array(completion, np.int32),
        np.full(size, -1.0, np.float32),
        np.zeros(size, np.int32),
        np.zeros(size, np.int32),
        1.0,
        excluded,
    )


def test_parallel_samples_that_agree_are_two_targets_in_two_rows() -> None:
    samples, _ = build_samples(0, [turn("left", [1, 2], [3]), turn("right", [1, 2], [3])])
    assert [sample.target_count for sample in samples] == [1, 1]


def test_what_cannot_be_a_target_is_counted_and_left_out() -> None:
    turns = [
        turn("ok", [1], [2]),
        turn("late", [1, 2, 3], [4], "late"),
        turn("title", [9], [4], "side"),
        turn("forced", [1, 2, 5], [6], "untrainable:forced_tool_choice"),
        turn("empty", [1, 2, 7], []),
        turn("unprompted", [], [6]),
    ]
    samples, counts = build_samples(3, turns)
    assert [sample.span_ids for sample in samples] == [("ok",)]
    assert samples[0].rollout == 3
    assert counts == Counter(
        {
            "used": 1,
            "late": 1,
            "side": 1,
            "untrainable:forced_tool_choice": 1,
            "empty": 1,
            "no_prompt_tokens": 1,
            "tokens_used": 1,
            "tokens_excluded": 4,
        }
    )


@settings(max_examples=100, deadline=None)
@given(call_trees(), st.randoms(use_true_random=False))
def test_samples_do_not_depend_on_the_order_of_spans(calls: list[Call], random: object) -> None:
    turns = [turn(call.id, call.prompt.tolist(), call.completion.tolist()) for call in calls]
    samples, counts = build_samples(0, turns)
    random.shuffle(turns)  # type: ignore[attr-defined]
    again, counts_again = build_samples(0, turns)
    assert counts == counts_again
    assert {(s.tokens.tobytes(), s.targets.tobytes(), s.span_ids) for s in samples} == {
        (s.tokens.tobytes(), s.targets.tobytes(), s.span_ids) for s in again
    }
