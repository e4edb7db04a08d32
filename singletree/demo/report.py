"""What the demo's numbers mean: success rates with standard errors, the verdict, and ``result.json``.

The verdict compares proportions of independent rollouts. Standard errors are of a binomial proportion with one
success and one failure added (Laplace's rule), so that 0 or n successes of n are not taken for certainty.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CLEAR = 3.0
"""Standard errors that an improvement must exceed to be called one."""


@dataclass(frozen=True)
class Score:
    """Rollouts that succeeded, of those that have a reward."""

    successes: int
    n: int
    missing: int = 0
    """Rollouts without a reward: not counted as failures [I4], but told."""

    @property
    def success(self) -> float:
        return self.successes / self.n if self.n else math.nan

    @property
    def standard_error(self) -> float:
        """Of ``success``; see the module. NaN without rollouts."""
        if not self.n:
            return math.nan
        p = (self.successes + 1) / (self.n + 2)
        return math.sqrt(p * (1 - p) / self.n)

    def to_json(self) -> dict[str, Any]:
        return {
            "success": round(self.success, 4),
            "n": self.n,
            "standard_error": round(self.standard_error, 4),
            "missing": self.missing,
        }


def score_of(rewards: Sequence[float | None]) -> Score:
    """Score of a list of rewards (1.0 is success, None is missing)."""
    known = [reward for reward in rewards if reward is not None]
    return Score(sum(reward == 1.0 for reward in known), len(known), len(rewards) - len(known))


@dataclass(frozen=True)
class Verdict:
    """How far ``after`` lies above ``before`` and above the best blind answer, in standard errors."""

    gain: float
    over_before: float
    over_blind: float

    @property
    def improved(self) -> bool:
        return self.over_before > CLEAR and self.over_blind > CLEAR


def judge(before: Score, after: Score, blind: float) -> Verdict:
    """Compare. ``blind`` is exact (computed from the tasks), so only ``after`` has an error there."""
    gain = after.success - before.success
    both = math.hypot(before.standard_error, after.standard_error)
    return Verdict(gain, gain / both, (after.success - blind) / after.standard_error)


def sentence(verdict: Verdict, control: str) -> str:
    """The verdict in words, whatever it is."""
    figures = (
        f"after is {verdict.gain:+.3f} from before ({verdict.over_before:+.1f} standard errors) and "
        f"{verdict.over_blind:+.1f} standard errors from the best answer that ignores its question"
    )
    if control != "none":
        expected = (
            "as it must" if not verdict.improved else "WHICH IT MUST NOT: something other than reward helps"
        )
        return f"Control run ({control}): {'no improvement, ' if not verdict.improved else 'improved, '}{expected}; {figures}."
    if verdict.improved:
        return f"It improved: {figures} (both above {CLEAR:.0f})."
    return f"NOT shown to improve: {figures} (both would have to be above {CLEAR:.0f})."


def write_json(path: Path, result: Mapping[str, Any]) -> None:
    """Write whole or not at all."""
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
    fresh.replace(path)
