"""What a run says about itself: totals, JSON events for other programs, a live line for people."""

from __future__ import annotations

import json
import math
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from harness_adapters.runner.rollout import Result


class Observer(Protocol):
    """Is told what happens; must not block."""

    def event(self, name: str, **fields: Any) -> None: ...


@dataclass
class Totals:
    """Counts of a run, and its rewards by group."""

    succeeded: int = 0
    failed: int = 0
    lost: int = 0
    unrewarded: int = 0
    """Ended rollouts without a reward: missing, not zero [I4]."""
    rewards: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """Group id -> its rollouts' rewards."""
    failures: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Kind of failure -> count."""
    first_error: str | None = None
    stopped: bool = False
    """True if the run was stopped before its tasks were done."""
    duration_s: float = 0.0

    def add(self, result: Result) -> None:
        match result.state:
            case "succeeded":
                self.succeeded += 1
            case "lost":
                self.lost += 1
            case _:
                self.failed += 1
        if result.failure is not None:
            self.failures[result.failure] += 1
            self.first_error = self.first_error or result.error
        if result.state == "lost":
            return
        if result.reward is None:
            self.unrewarded += 1
        else:
            self.rewards[result.group_id].append(result.reward)

    @property
    def rollouts(self) -> int:
        return self.succeeded + self.failed + self.lost

    @property
    def rewarded(self) -> int:
        return sum(len(values) for values in self.rewards.values())


def mean_and_error(groups: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Mean over all rollouts, and its standard error with rollouts of one task counted as dependent.

    The cluster-robust error of a mean (Liang & Zeger, Biometrika 73, 1986) with the small-sample factor G/(G-1):
    sqrt(G/(G-1) * sum over groups (sum of (r - mean))^2) / n. With groups of one it is s/sqrt(n). NaN where undefined.
    """
    groups = [group for group in groups if group]
    count, clusters = sum(len(group) for group in groups), len(groups)
    if count == 0:
        return math.nan, math.nan
    mean = math.fsum(value for group in groups for value in group) / count
    if clusters < 2:
        return mean, math.nan
    squares = math.fsum(math.fsum(value - mean for value in group) ** 2 for group in groups)
    return mean, math.sqrt(squares * clusters / (clusters - 1)) / count


class EventLog:
    """Appends one JSON object per event to a file, flushed at once: ``{"event", "at", ...}``, Unix seconds."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: TextIO = path.open("a", encoding="utf-8")

    def event(self, name: str, **fields: Any) -> None:
        self._file.write(json.dumps({"event": name, "at": time.time(), **fields}, default=str) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()
