"""Rewards are finite numbers or absent, and nothing becomes zero by itself [I4]."""

from __future__ import annotations

import asyncio
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from harness_adapters.errors import ConfigError, RewardInvalid
from harness_adapters.protocol import Outcome, Task
from harness_adapters.rewards.check import named_values
from harness_adapters.rewards.command import command_reward
from harness_adapters.rewards.function import function_reward
from harness_adapters.rewards.reasoning_gym import reasoning_gym_reward
from harness_adapters.rewards.text import text_reward
from harness_adapters.tasks.reasoning_gym import make_dataset, open_reasoning_gym

HERE = "tests.harness_adapters.test_rewards"


def score(reward: Any, payload: dict[str, Any], outcome: Outcome) -> dict[str, float]:
    return asyncio.run(reward(Task(payload), outcome))


@given(
    st.one_of(
        st.floats(), st.integers(-(10**6), 10**6), st.booleans(), st.none(), st.text(), st.lists(st.floats())
    )
)
@example(math.nan)
@example(math.inf)
@example(-math.inf)
def test_only_finite_numbers_are_rewards(value: Any) -> None:
    if value is None:
        assert named_values(value, who="f") == {}
    elif isinstance(value, int | float) and math.isfinite(value):
        assert named_values(value, who="f") == {"reward": float(value)}
    else:
        with pytest.raises(RewardInvalid):
            named_values(value, who="f")


def test_numpy_scalars_and_named_values_are_taken() -> None:
    assert named_values(np.float32(0.5), who="f") == {"reward": 0.5}
    assert named_values({"reward": True, "length": np.int64(3)}, who="f") == {"reward": 1.0, "length": 3.0}


def raises(task: dict[str, Any], outcome: Outcome) -> float:
    raise KeyError("price")


def stops(task: dict[str, Any], outcome: Outcome) -> float:
    raise StopIteration


def hangs(task: dict[str, Any], outcome: Outcome) -> float:
    import time

    time.sleep(30)
    return 1.0


async def later(task: dict[str, Any], outcome: Outcome) -> None:
    return None


def one_argument(task: dict[str, Any]) -> float:
    return 1.0


@pytest.mark.parametrize(
    ("name", "words"), [("raises", "KeyError"), ("stops", "StopIteration"), ("hangs", "within")]
)
def test_a_reward_function_at_fault_gives_no_reward(name: str, words: str) -> None:
    with pytest.raises(RewardInvalid, match=words):
        score(function_reward(f"{HERE}:{name}", timeout_s=0.5), {}, Outcome())


def test_a_coroutine_function_may_leave_the_reward_for_later() -> None:
    assert score(function_reward(f"{HERE}:later", timeout_s=5), {}, Outcome()) == {}


@pytest.mark.parametrize(
    ("name", "words"), [("one_argument", "must take"), ("HERE", "not callable"), ("no", "has no")]
)
def test_an_unfit_reward_function_is_refused_before_the_run(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        function_reward(f"{HERE}:{name}", timeout_s=5)


def test_text_rewards() -> None:
    exact = text_reward("exact", field="answer", ignore_case=True)
    contains = text_reward("contains", field="answer", ignore_case=False)
    assert score(exact, {"answer": "Paris"}, Outcome(final_text=" paris\n")) == {"reward": 1.0}
    assert score(exact, {"answer": ["a", "b"]}, Outcome(final_text="b")) == {"reward": 1.0}
    assert score(exact, {"answer": "Paris"}, Outcome(final_text="In Paris")) == {"reward": 0.0}
    assert score(contains, {"answer": "Paris"}, Outcome(final_text="In Paris")) == {"reward": 1.0}
    assert score(contains, {"answer": 7}, Outcome(final_text="it is 7")) == {"reward": 1.0}
    with pytest.raises(RewardInvalid, match="no field"):
        score(exact, {}, Outcome(final_text="Paris"))


def test_command_reward_is_the_verdict_of_a_program_in_the_workspace(tmp_path: Path) -> None:
    (tmp_path / "made.txt").write_text("by the agent")
    check = [sys.executable, "-S", "-c", "import sys; sys.exit(open('made.txt').read() != sys.stdin.read())"]
    reward = command_reward(check, timeout_s=20)
    assert score(reward, {}, Outcome(workspace=tmp_path, final_text="by the agent")) == {"reward": 1.0}
    assert score(reward, {}, Outcome(workspace=tmp_path, final_text="else")) == {"reward": 0.0}


@pytest.mark.parametrize("argv", [["sh", "-c", "no-such-program"], ["sh", "-c", "kill -9 $$"]])
def test_a_broken_check_is_no_verdict(tmp_path: Path, argv: list[str]) -> None:
    with pytest.raises(RewardInvalid):
        score(command_reward(argv, timeout_s=20), {}, Outcome(workspace=tmp_path))


def test_a_check_that_is_not_there_is_refused_at_the_start() -> None:
    with pytest.raises(ConfigError, match="not on PATH"):
        command_reward(["no-such-program"], timeout_s=20)


def test_checks_run_beside_each_other_and_find_their_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every workspace has the same last name; the end of one check must not end the others."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "check.sh").write_text("sleep $(cat)")
    reward = command_reward(["sh", "check.sh"], timeout_s=20)
    folders = [tmp_path / name / "work" for name in ("a", "b")]
    for folder in folders:
        folder.mkdir(parents=True)

    async def both() -> list[dict[str, float]]:
        outcomes = [
            Outcome(workspace=folders[0], final_text="0.1"),
            Outcome(workspace=folders[1], final_text="0.8"),
        ]
        return await asyncio.gather(*(reward(Task({}), outcome) for outcome in outcomes))

    assert asyncio.run(both()) == [{"reward": 1.0}, {"reward": 1.0}]


def test_reasoning_gym_scores_its_own_tasks() -> None:
    source = open_reasoning_gym("chain_sum", seed=3, size=4, config={})
    tasks = list(source(1))
    answers = make_dataset("chain_sum", 4, 4, b"{}")
    reward = reasoning_gym_reward()
    assert set(tasks[0].payload) == {"prompt", "reasoning_gym"}  # the answer stays here
    right, wrong = answers[2]["answer"], "no idea"
    assert score(reward, tasks[2].payload, Outcome(final_text=f"<answer>{right}</answer>")) == {"reward": 1.0}
    assert score(reward, tasks[2].payload, Outcome(final_text=wrong))["reward"] < 1.0
    with pytest.raises(RewardInvalid, match="not from reasoning-gym"):
        score(reward, {}, Outcome())
