"""The demo's tasks: the same for everyone who knows the seed, stratified, and held out for real."""

from __future__ import annotations

import re
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from singletree.demo import tasks

seeds = st.integers(0, 2**31)


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_tasks_are_a_function_of_the_seed(seed: int) -> None:
    assert tasks.train_tasks(seed, 3, 6) == tasks.train_tasks(seed, 3, 6)
    assert tasks.heldout_tasks(seed, 36) == tasks.heldout_tasks(seed, 36)
    assert tasks.teacher_tasks(seed, 72) == tasks.teacher_tasks(seed, 72)
    assert tasks.train_tasks(seed, 3, 6) != tasks.train_tasks(seed + 1, 3, 6)
    assert tasks.heldout_tasks(seed, 36) != tasks.heldout_tasks(seed + 1, 36)


def test_a_longer_run_starts_with_the_same_batches() -> None:
    assert tasks.train_tasks(1, 40, 6)[:60] == tasks.train_tasks(1, 10, 6)


@settings(max_examples=10, deadline=None)
@given(seeds, st.integers(1, 5), st.integers(1, 4))
def test_every_batch_has_equally_many_of_each_kind(seed: int, batches: int, per_kind: int) -> None:
    size = 3 * per_kind
    dealt = tasks.train_tasks(seed, batches, size)
    assert len(dealt) == batches * size
    for start in range(0, len(dealt), size):
        kinds = Counter(task.kind for task in dealt[start : start + size])
        assert set(kinds.values()) == {per_kind} and len(kinds) == 3


def test_a_batch_that_cannot_be_stratified_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple"):
        tasks.train_tasks(0, 1, 7)


@settings(max_examples=10, deadline=None)
@given(seeds)
def test_held_out_tasks_name_no_item_of_training_and_two_new_phrasings(seed: int) -> None:
    train, held = tasks.train_tasks(seed, 30, 6), tasks.heldout_tasks(seed, 324)
    assert not {task.item for task in train} & {task.item for task in held}
    assert {task.phrasing for task in train} == set(range(4))
    cells = Counter((task.kind, task.phrasing) for task in held)
    assert set(cells.values()) == {18} and len(cells) == 18


def test_the_lists_are_what_they_say() -> None:
    assert len(set(tasks.TRAIN_ITEMS)) == len(tasks.TRAIN_ITEMS) == 70
    assert len(set(tasks.HELDOUT_ITEMS)) == len(tasks.HELDOUT_ITEMS)
    assert not set(tasks.TRAIN_ITEMS) & set(tasks.HELDOUT_ITEMS)
    texts = [text for kind in tasks.KINDS for text in kind.phrasings]
    assert len(set(texts)) == 18 and all(text.count("{item}") == 1 for text in texts)


def test_facts_are_right_and_cannot_be_mistaken_for_each_other() -> None:
    for task in tasks.heldout_tasks(0, 54):
        assert task.answer == task.facts[task.tool]
        assert task.item in task.prompt
        assert re.fullmatch(r"\$\d\d", task.facts["get_price"])
        assert re.fullmatch(r"\d\d", task.facts["get_stock"])
        assert re.fullmatch(r"[A-H]\d\d", task.facts["get_shelf"])


def test_the_teacher_teaches_no_choice_of_tool() -> None:
    pairs = tasks.teacher_tasks(5, 144)
    cells = Counter((task.kind, task.phrasing, tool) for task, tool in pairs)
    assert set(cells.values()) == {4} and len(cells) == 36
    assert len({task.prompt for task, _ in pairs}) == 144
    assert sum(task.tool == tool for task, tool in pairs) == 48


def test_the_best_blind_answer_is_one_third_of_balanced_tasks() -> None:
    held = tasks.heldout_tasks(1, 324)
    assert tasks.blind_success(held) == pytest.approx(1 / 3)
    assert tasks.blind_success([task for task in held if task.kind == "stock"]) == 1.0
