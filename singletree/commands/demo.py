"""``singletree demo``: the whole loop on this machine."""

from __future__ import annotations

import signal
import sys
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Control(StrEnum):
    NONE = "none"
    PERMUTE_REWARDS = "permute_rewards"


@app.callback(invoke_without_command=True)
def demo(
    seed: Annotated[int, typer.Option(min=0, help="Of tasks, facts, batches and sampling.")] = 1,
    steps: Annotated[int, typer.Option(min=1, help="Reinforcement steps at most.")] = 30,
    minutes: Annotated[
        float,
        typer.Option(
            min=0, help="For everything; reinforcement ends early to fit, but takes 16 steps. 0: no limit."
        ),
    ] = 14.0,
    control: Annotated[
        Control,
        typer.Option(help="permute_rewards: the same loop with rewards dealt at random; must not improve."),
    ] = Control.NONE,
    output: Annotated[Path, typer.Option(help="Folder for everything that the run leaves.")] = Path(
        "runs/demo"
    ),
) -> None:
    """A small real model, served by vLLM, learns inside pydantic-ai which tool answers which question.

    Needs [cpu] and [harnesses] of this package, and `singletree engine install`; `make demo` sees to both. Ctrl-C stops
    every process that it started.
    """
    from rich.console import Console

    from singletree.demo.errors import ProcessFailed
    from singletree.demo.plan import Plan
    from singletree.demo.processes import tail
    from singletree.demo.run import run_demo
    from singletree.demo.screen import Screen
    from singletree.engine.home import engine_home, installed

    installed(engine_home())
    signal.signal(signal.SIGTERM, _stop)
    plan = Plan(
        output=output.absolute(), seed=seed, steps=steps, control=control.value, budget_s=60 * minutes
    )
    try:
        run_demo(plan, Screen(Console()))
    except KeyboardInterrupt:
        print(
            f"stopped; every process that the demo started is gone, what it wrote is in {plan.output}",
            file=sys.stderr,
        )
        raise typer.Exit(130) from None
    except ProcessFailed as error:
        if error.log is not None:
            print(tail(error.log, 20), file=sys.stderr)
        raise


def _stop(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
