"""Advantages: from the rewards of a group's rollouts to one number per rollout.

They are taken over rollouts, never over samples or spans, so that splitting a rollout into more rows changes nothing
[I9]. A missing reward is not zero: such a rollout has no advantage and enters no statistic [I4].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class GroupAdvantages:
    """One group's result."""

    values: list[float | None]
    """Per rollout, in the order of the rewards; None where the reward is missing."""
    has_signal: bool
    """False if no two rewards differ: every advantage is then zero."""


Advantage = Callable[[Sequence[float | None]], GroupAdvantages]


def grpo(rewards: Sequence[float | None]) -> GroupAdvantages:
    """(r - mean) / std over the rollouts that have a reward (Shao et al. 2024, arXiv:2402.03300, section 4.1).

    ``std`` is that of the group itself (divisor n), with no constant added: equal rewards, and a group of one, are
    told apart beforehand and have the advantage zero. Rewards that differ by rounding alone count as equal.
    """
    known = np.array([reward for reward in rewards if reward is not None], dtype=np.float64)
    if not has_signal(known):
        return GroupAdvantages([None if reward is None else 0.0 for reward in rewards], False)
    mean, std = known.mean(), known.std()
    return GroupAdvantages(
        [None if reward is None else float((reward - mean) / std) for reward in rewards], True
    )


def has_signal(rewards: np.ndarray) -> bool:
    """Whether rewards (n,) differ by more than rounding."""
    if rewards.size < 2:
        return False
    spread = float(rewards.max() - rewards.min())
    return spread > 1e-9 * max(1.0, float(np.abs(rewards).max()))


def permute_rewards(
    groups: Sequence[Sequence[float | None]], seed: Sequence[int]
) -> list[list[float | None]]:
    """The negative control: the batch's rewards dealt out at random over all its rollouts.

    The distribution of rewards stays; what they say about the rollouts is gone, so a loop that still improves is
    fooling itself. ``seed`` (a sequence of non-negative integers) fixes the deal.
    """
    flat = [reward for rewards in groups for reward in rewards]
    order = np.random.default_rng(list(seed)).permutation(len(flat))
    dealt = iter([flat[index] for index in order])
    return [[next(dealt) for _ in rewards] for rewards in groups]


ADVANTAGES: dict[str, Advantage] = {"grpo": grpo}
