"""What counts as a reward: a finite number, or several by name."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping
from typing import Any

from harness_adapters.errors import RewardInvalid


def named_values(value: Any, *, who: str) -> dict[str, float]:
    """A reward function's result as finite floats by name.

    A number or truth value is ``reward``; a mapping is taken as it is; null is no reward. Raises ``RewardInvalid``.
    """
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        value = {"reward": value}
    return {str(name): finite(number, who=who, name=str(name)) for name, number in value.items()}


def finite(value: Any, *, who: str, name: str) -> float:
    """``value`` as a finite float; numpy and torch scalars are numbers too."""
    if not isinstance(value, numbers.Real) and callable(getattr(value, "item", None)):
        value = value.item()
    if not isinstance(value, numbers.Real):
        raise RewardInvalid(f"{who} returned {type(value).__name__} for {name!r}, not a number")
    number = float(value)
    if not math.isfinite(number):
        raise RewardInvalid(f"{who} returned {number} for {name!r}; a reward must be a finite number")
    return number
