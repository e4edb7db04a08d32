"""Normalisation: what one target token of each rollout weighs in the loss.

The denominators come from the whole optimiser step, before any micro-batch is made, so that micro-batch size, packing,
row splits and world size leave the gradient unchanged [I10]: the loss is the plain sum of weight x token loss.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Normalization = Callable[[Sequence[int]], list[float]]


def token(counts: Sequence[int]) -> list[float]:
    """The mean over the step's target tokens: each weighs 1 / (all of them). Long rollouts weigh more.

    ``counts`` are the target tokens of each rollout in the step; the result is the weight of one token of each.
    """
    total = sum(counts)
    return [1.0 / total if count else 0.0 for count in counts]


def rollout(counts: Sequence[int]) -> list[float]:
    """The mean over rollouts of the mean over each one's target tokens. Rollouts without targets are not counted."""
    rollouts = sum(1 for count in counts if count)
    return [1.0 / (rollouts * count) if count else 0.0 for count in counts]


NORMALIZATIONS: dict[str, Normalization] = {"token": token, "rollout": rollout}
