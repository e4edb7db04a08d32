"""Rewards that compare the agent's last answer with a text in the task: 1 if it fits, else 0."""

from __future__ import annotations

from typing import Literal

from harness_adapters.errors import RewardInvalid
from harness_adapters.protocol import Outcome, Task
from harness_adapters.rewards import RewardFunction


def text_reward(kind: Literal["exact", "contains"], *, field: str, ignore_case: bool) -> RewardFunction:
    """Compare with ``payload[field]``; white space at the ends does not count. Several accepted texts: a list."""

    def normal(text: object) -> str:
        stripped = str(text).strip()
        return stripped.casefold() if ignore_case else stripped

    async def reward(task: Task, outcome: Outcome) -> dict[str, float]:
        if field not in task.payload:
            raise RewardInvalid(f"the task has no field {field!r} to compare with; set reward.field")
        wanted = task.payload[field]
        accepted = [normal(text) for text in (wanted if isinstance(wanted, list) else [wanted])]
        answer = normal(outcome.final_text)
        fits = answer in accepted if kind == "exact" else any(text in answer for text in accepted)
        return {"reward": float(fits)}

    return reward
