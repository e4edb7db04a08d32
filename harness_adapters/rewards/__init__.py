"""Reward functions. Each gives named finite numbers for one rollout; the one named ``reward`` trains.

A rollout without a reward stays without one [I4]: nothing here turns a failure into zero unless the user said so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from harness_adapters.protocol import Outcome, Task

RewardFunction = Callable[[Task, Outcome], Awaitable[dict[str, float]]]
"""(task, outcome) -> values by name; an empty dict leaves the reward pending (it may be posted later).

Raises ``RewardInvalid`` if there is no proper value.
"""
