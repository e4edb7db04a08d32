"""What ``singletree run`` shows: one live line while it runs, one table at its end."""

from __future__ import annotations

import math
import time
from typing import Any, TextIO

from rich.console import Console
from rich.status import Status
from rich.table import Table

from harness_adapters.runner.report import Totals, mean_and_error

PLAIN_LINE_EVERY_S = 10.0
"""Where the output is no terminal: a plain line this often."""


class LiveLine:
    """An observer that keeps one line up to date on a terminal, and writes one now and then elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._console = Console(file=stream)
        self._status = Status("connecting", console=self._console) if self._console.is_terminal else None
        self._started = time.monotonic()
        self._told_at = self._started
        self._groups = self._running = self._ended = self._failed = 0
        self._reward_sum, self._rewarded = 0.0, 0
        self._note = ""

    def __enter__(self) -> LiveLine:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()

    def event(self, name: str, **fields: Any) -> None:
        """Take an event in and show the new state."""
        match name:
            case "group_created":
                self._groups += 1
                self._running += len(fields["rollouts"])
                self._note = ""
            case "rollout_ended":
                self._running -= 1
                self._ended += 1
                self._failed += fields["state"] != "succeeded"
                if fields["reward"] is not None:
                    self._reward_sum += fields["reward"]
                    self._rewarded += 1
            case "admission_wait":
                self._note = "waiting for the trainer"
            case "engine_wait":
                self._note = f"waiting for an engine ({fields['engines']})"
        self._show(urgent=name == "engine_wait")

    def text(self) -> str:
        """The line."""
        mean = f"{self._reward_sum / self._rewarded:.3f}" if self._rewarded else "-"
        parts = [
            f"{self._groups} groups",
            f"{self._ended} rollouts ended",
            f"{self._failed} failed",
            f"{self._running} open",
            f"mean reward {mean}",
            f"{time.monotonic() - self._started:.0f} s",
        ]
        return " · ".join(parts + ([self._note] if self._note else []))

    def _show(self, *, urgent: bool = False) -> None:
        if self._status is not None:
            self._status.update(self.text())
        elif urgent or time.monotonic() - self._told_at >= PLAIN_LINE_EVERY_S:
            self._told_at = time.monotonic()
            self._console.print(self.text(), highlight=False)


def summary_table(totals: Totals) -> Table:
    """Rollouts, successes, failures by kind, and the mean reward with its standard error."""
    mean, error = mean_and_error(list(totals.rewards.values()))
    table = Table("", "", show_header=False, title="stopped early" if totals.stopped else None)
    table.add_row("rollouts", str(totals.rollouts))
    table.add_row("succeeded", str(totals.succeeded))
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(totals.failures.items()))
    table.add_row("failed", f"{totals.failed}" + (f" ({kinds})" if kinds else ""))
    if totals.lost:
        table.add_row("lost (ended before the runner could)", str(totals.lost))
    table.add_row("without reward", str(totals.unrewarded))
    shown = "-" if math.isnan(mean) else f"{mean:.4f}" + ("" if math.isnan(error) else f" ± {error:.4f}")
    table.add_row("mean reward ± standard error", f"{shown} (n = {totals.rewarded})")
    table.add_row("seconds", f"{totals.duration_s:.1f}")
    return table
