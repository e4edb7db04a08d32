"""The figures at a run's end."""

from __future__ import annotations

import math
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness_adapters.runner.ids import GroupIds
from harness_adapters.runner.report import Totals, mean_and_error
from harness_adapters.runner.rollout import Result

REWARDS = st.floats(-10, 10)


@given(st.lists(REWARDS, min_size=2, max_size=30))
def test_with_one_rollout_per_task_it_is_the_plain_standard_error(values: list[float]) -> None:
    mean, error = mean_and_error([[value] for value in values])
    assert mean == pytest.approx(statistics.fmean(values), abs=1e-12)
    assert error == pytest.approx(statistics.stdev(values) / math.sqrt(len(values)), abs=1e-9)


@given(st.lists(REWARDS, min_size=2, max_size=10), st.integers(2, 5))
def test_repeating_each_rollout_adds_no_certainty(values: list[float], times: int) -> None:
    once = mean_and_error([[value] for value in values])
    assert mean_and_error([[value] * times for value in values]) == pytest.approx(once, abs=1e-9)


def test_a_failed_rollout_without_a_reward_is_missing_from_the_mean_and_not_zero() -> None:
    totals = Totals()
    totals.add(Result("r1", "g", "succeeded", {"reward": 1.0}))
    totals.add(Result("r2", "g", "failed", failure="exit", error="exit code 1"))
    totals.add(Result("r3", "g2", "lost", {"reward": 0.0}))
    assert (totals.succeeded, totals.failed, totals.lost, totals.unrewarded) == (1, 1, 1, 1)
    assert mean_and_error(list(totals.rewards.values()))[0] == 1.0
    assert totals.first_error == "exit code 1"


def test_no_rewards_give_no_mean() -> None:
    assert all(math.isnan(value) for value in mean_and_error([]))
    assert math.isnan(mean_and_error([[1.0, 0.0]])[1])


def test_group_ids_sort_in_the_order_in_which_they_were_made() -> None:
    ids = GroupIds()
    made = [ids.new() for _ in range(2000)]
    assert made == sorted(made) and len(set(made)) == len(made)
    assert all(len(one) == 30 and one.startswith("grp_") for one in made)
