"""reasoning-gym's own scorer, for tasks that came from it."""

from __future__ import annotations

import re

import orjson

from harness_adapters.errors import RewardInvalid
from harness_adapters.protocol import Outcome, Task
from harness_adapters.rewards import RewardFunction
from harness_adapters.rewards.check import named_values
from harness_adapters.tasks.reasoning_gym import make_dataset

ANSWER_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)


def reasoning_gym_reward() -> RewardFunction:
    """Score the text between the last ``<answer>`` tags, or the whole last answer without them; 0 to 1."""

    async def reward(task: Task, outcome: Outcome) -> dict[str, float]:
        origin = task.payload.get("reasoning_gym")
        if not isinstance(origin, dict):
            raise RewardInvalid(
                "the task is not from reasoning-gym; use tasks.kind: reasoning-gym with this reward"
            )
        entries = make_dataset(
            origin["dataset"], origin["seed"], origin["size"], orjson.dumps(origin["config"])
        )
        tagged = ANSWER_TAG.findall(outcome.final_text)
        answer = (tagged[-1] if tagged else outcome.final_text).strip()
        score = entries.score_answer(answer, entry=entries[origin["index"]])
        return named_values(score, who=f"reasoning-gym's scorer of {origin['dataset']}")

    return reward
