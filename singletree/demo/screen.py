"""What the demo shows while it runs: live on a terminal, a line per event elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from singletree.demo.plot import sparkline
from singletree.demo.report import Score, Verdict

ROWS = 8
"""Steps shown at once."""
COLUMNS = (
    ("step", "number"),
    ("reward", "reward/mean"),
    ("equal groups", "groups/zero_variance"),
    ("entropy", "policy/entropy"),
    ("rollouts", "rollouts"),
    ("version", "version"),
    ("staleness", "staleness/max"),
    ("parity gap", "parity/gap_mean"),
    ("rollouts s", "seconds/wait"),
    ("train s", "seconds/forward_backward"),
    ("publish s", "seconds/publish"),
)
"""Column title -> metric of the step."""


class Screen:
    """Where the demo writes."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def say(self, text: str) -> None:
        self.console.print(text, highlight=False)

    @contextmanager
    def counting(self, title: str, total: int) -> Iterator[Callable[[int], None]]:
        """A bar for ``total`` things; the block gets a function that takes how many are done."""
        if not self.console.is_terminal:
            self.say(f"{title} ({total})")
            yield lambda done: None
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=self.console) as progress:
            bar = progress.add_task(title, total=total)
            yield lambda done: progress.update(bar, completed=done)

    @contextmanager
    def steps(self, total: int) -> Iterator[Callable[[Sequence[dict[str, Any]]], None]]:
        """Live view of the RL steps; the block gets a function that takes all steps so far."""
        if self.console.is_terminal:
            with Live(Text("waiting for the first step"), console=self.console, refresh_per_second=4) as live:
                yield lambda steps: live.update(steps_view(steps, total))
            return
        told = 0

        def tell(steps: Sequence[dict[str, Any]]) -> None:
            nonlocal told
            for step in steps[told:]:
                self.say(step_line(step, total))
            told = len(steps)

        yield tell

    def table(self, scores: dict[str, Score], blind: float, verdict: Verdict) -> None:
        """The result."""
        table = Table(title="Held-out questions answered right", title_style="bold")
        for column in ("", "success", "standard error", "tasks"):
            table.add_column(column, justify="left" if not column else "right")
        names = {
            "base": "untouched model",
            "before": "before: form of a call learned",
            "after": "after reinforcement learning",
        }
        for phase, title in names.items():
            score = scores[phase]
            missing = f" (+{score.missing} without reward)" if score.missing else ""
            table.add_row(title, f"{score.success:.3f}", f"{score.standard_error:.3f}", f"{score.n}{missing}")
        table.add_row(
            "best answer that ignores its question", f"{blind:.3f}", "exact", str(scores["after"].n)
        )
        table.add_row("gain, after - before", f"{verdict.gain:+.3f}", f"{verdict.over_before:+.1f} SE", "")
        self.console.print(table)


def cell(metrics: dict[str, Any], name: str) -> str:
    """A metric as text; empty if the step has none."""
    value = metrics.get(name)
    if value is None:
        return ""
    return f"{value:.0f}" if float(value).is_integer() and name in WHOLE else f"{value:.3g}"


WHOLE = {"number", "rollouts", "version", "staleness/max"}


def values(step: dict[str, Any]) -> dict[str, Any]:
    return {**step["metrics"], "number": step["stage_step"]}


def steps_view(steps: Sequence[dict[str, Any]], total: int) -> Group:
    """The reward curve as blocks over the newest steps' figures."""
    rewards = [step["metrics"].get("reward/mean", 0.0) for step in steps]
    now = f" {rewards[-1]:.2f}" if rewards else ""
    head = Text.assemble(
        (f"reward, step {len(steps)} of {total}  ", "bold"), (sparkline(rewards), "green"), now
    )
    table = Table(box=None, pad_edge=False, header_style="dim")
    for title, _ in COLUMNS:
        table.add_column(title, justify="right")
    for step in steps[-ROWS:]:
        table.add_row(*(cell(values(step), name) for _, name in COLUMNS))
    return Group(head, table)


def step_line(step: dict[str, Any], total: int) -> str:
    """One step as one line."""
    shown = values(step)
    figures = "  ".join(f"{title} {cell(shown, name)}" for title, name in COLUMNS[1:] if name in shown)
    return f"step {shown['number']}/{total}  {figures}"
