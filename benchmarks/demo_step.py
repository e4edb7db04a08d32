"""Seconds per step of a demo run, split into rollouts, training and publishing, read from the span log that it left.

All three come from times that the database holds anyway: a step's rollouts run from the first claim to the last
settlement among its groups, training from the step's start to its commit, publishing from there until the version was
published. ``python -m benchmarks.demo_step [DATABASE_FILE]``; opened read-only.
"""

from __future__ import annotations

import sqlite3
import statistics
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUNS = Path("runs/demo")

QUERY = """
SELECT step.stage, step.number, min(rollout.started_at), max(grp.settled_at), step.started_at, step.committed_at,
       version.published_at
FROM train_steps AS step
JOIN groups AS grp ON grp.step_id = step.id
JOIN rollouts AS rollout ON rollout.group_id = grp.id
LEFT JOIN policy_versions AS version ON version.policy_id = step.policy_id AND version.version = step.version
WHERE NOT step.void
GROUP BY step.id
ORDER BY step.number
"""


@dataclass(frozen=True)
class Step:
    """Seconds of one optimiser step."""

    stage: str
    number: int
    rollouts: float
    training: float
    publishing: float | None


def read_steps(database: Path) -> Iterator[Step]:
    """The steps that consumed rollouts, oldest first. Raises ``sqlite3.Error``."""
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        for stage, number, claimed, settled, started, committed, published in connection.execute(QUERY):
            publishing = None if published is None else published - committed
            yield Step(stage, number, settled - claimed, committed - started, publishing)
    finally:
        connection.close()


def summary(name: str, values: list[float]) -> str:
    ordered = sorted(values)
    return f"  {name:<11}{statistics.median(ordered):8.2f}{ordered[0]:8.2f}{ordered[-1]:8.2f}"


def main() -> int:
    found = (
        [Path(sys.argv[1])]
        if len(sys.argv) > 1
        else sorted(RUNS.rglob("*.sqlite"), key=lambda p: p.stat().st_mtime)
    )
    if not found or not found[-1].is_file():
        print(f"demo steps: no database in {RUNS}; run make demo first")
        return 0
    try:
        steps = list(read_steps(found[-1]))
    except sqlite3.Error as error:
        print(f"error: {found[-1]} is no span log: {error}", file=sys.stderr)
        return 1
    print(f"\nDemo, {found[-1]}: {len(steps)} steps, seconds per step")
    if not steps:
        return 0
    print(f"  {'':<11}{'median':>8}{'least':>8}{'most':>8}")
    print(summary("rollouts", [step.rollouts for step in steps]))
    print(summary("training", [step.training for step in steps]))
    if published := [step.publishing for step in steps if step.publishing is not None]:
        print(summary("publishing", published))
    return 0


if __name__ == "__main__":
    sys.exit(main())
