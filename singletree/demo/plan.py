"""What one demo run does, and the files that tell its processes so: tasks, runner configurations, the recipe.

The recipe and the runner's configurations are written to the run's folder, so that any phase can be repeated by hand
with the same commands that the demo uses.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

from singletree.demo import tasks
from singletree.demo.errors import DemoError

POLICY = "clerk"
TEACHER = "clerk-teacher"
RECIPE = Path(__file__).resolve().parents[2] / "recipes" / "demo.yaml"
Phase = Literal["teacher", "base", "before", "training", "after"]


@dataclass(frozen=True)
class Plan:
    """One run."""

    output: Path
    """Folder of everything that the run leaves."""
    seed: int = 1
    """Of tasks, facts, batches and the engine's sampler."""
    steps: int = 30
    """RL steps, if the time allows."""
    budget_s: float = 840.0
    """Seconds for everything: RL ends early so that the last evaluation fits in. 0: no limit."""
    fewest_steps: int = 16
    """RL steps that are taken however long they last; fewer did not separate from noise."""
    control: str = "none"
    """``none``, or ``permute_rewards``: the same loop with rewards dealt at random, which must not improve."""
    groups_per_step: int = 6
    """Two of each kind of question."""
    group_size: int = 8
    """Rollouts per question."""
    teacher_rollouts: int = 144
    """Four per phrasing and tool: enough to learn the form of a call."""
    base_tasks: int = 54
    """Held-out tasks for the untouched model. It never succeeds, and fewer tasks than in the other two show that."""
    heldout_tasks: int = 306
    """Held-out tasks before and after: 17 per phrasing of each kind."""
    max_tokens: int = 48
    """Per model call; a well-formed call takes about 30."""
    recipe: Path = RECIPE
    """What the trainer is told, before this run's folders and numbers are filled in."""

    @property
    def database(self) -> Path:
        return self.output / "singletree.sqlite"

    @property
    def keys(self) -> Path:
        return self.output / "keys.json"

    @property
    def logs(self) -> Path:
        return self.output / "logs"

    @property
    def rollouts_per_step(self) -> int:
        return self.groups_per_step * self.group_size


def make_room(output: Path) -> Path | None:
    """An empty ``output`` folder. What an earlier run left there is moved aside; returns where to."""
    moved = None
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        stamp = time.strftime("%Y%m%d-%H%M%S", time.localtime(output.stat().st_mtime))
        moved = output.with_name(f"{output.name}-{stamp}")
        try:
            output.rename(moved)
        except OSError as error:
            raise DemoError(
                f"cannot move the earlier run {output} aside ({error}); choose another --output"
            ) from None
    try:
        output.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DemoError(f"cannot make {output} ({error}); choose another --output") from None
    return moved


def phase_tasks(plan: Plan, phase: Phase) -> list[tasks.ShopTask]:
    """The tasks of a phase. Training gets two batches more than it has steps, should a group be lost."""
    if phase == "teacher":
        return [task for task, _ in tasks.teacher_tasks(plan.seed, plan.teacher_rollouts)]
    if phase == "training":
        return tasks.train_tasks(plan.seed, plan.steps + 2, plan.groups_per_step)
    held_out = tasks.heldout_tasks(plan.seed, plan.heldout_tasks)
    return held_out[: plan.base_tasks] if phase == "base" else held_out


def write_tasks(plan: Plan, phase: Phase) -> Path:
    """The phase's tasks as JSON lines, with ids ``<phase>-0000`` and so on."""
    path = plan.output / "tasks" / f"{phase}.jsonl"
    path.parent.mkdir(exist_ok=True)
    lines = [
        json.dumps({"id": f"{phase}-{index:04d}", **task.payload()})
        for index, task in enumerate(phase_tasks(plan, phase))
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def write_run_config(plan: Plan, phase: Phase, proxy_url: str) -> Path:
    """The configuration of ``singletree run`` for a phase."""
    training = phase == "training"
    config: dict[str, Any] = {
        "proxy": proxy_url,
        "keys_file": str(plan.keys),
        "policy": TEACHER if phase == "teacher" else POLICY,
        "purpose": "train" if phase in ("teacher", "training") else "eval",
        "harness": {
            "kind": "pydantic-ai",
            "agent": "singletree.demo.clerk:agent",
            "model_settings": {"max_tokens": plan.max_tokens},
            "max_turns": 2,
        },
        "tasks": {"kind": "jsonl", "path": str(write_tasks(plan, phase))},
        "reward": {
            "kind": "function",
            "function": "singletree.demo.clerk:score",
            "score_failures": ["agent"],
        },
        "group_size": plan.group_size if training else 1,
        "concurrency": plan.rollouts_per_step,
        "timeout_s": 120.0,
        "deadline_s": 300.0,
    }
    path = plan.output / "configs" / f"{phase}.yaml"
    path.parent.mkdir(exist_ok=True)
    path.write_text(yaml.safe_dump(config, sort_keys=False), encoding="utf-8")
    return path


def write_recipe(plan: Plan, model: Path) -> Path:
    """The demo's recipe with this run's folders, seed, number of steps and control filled in."""
    recipe = yaml.safe_load(plan.recipe.read_text(encoding="utf-8"))
    recipe["database"] = f"sqlite:///{plan.database}"
    recipe["output"] = str(plan.output / "training")
    recipe["seed"] = plan.seed
    recipe["model"]["path"] = str(model)
    for stage in recipe["stages"]:
        if stage["objective"] == "sft":
            stage["rollouts"] = plan.teacher_rollouts
        else:
            stage |= {"steps": plan.steps, "groups_per_step": plan.groups_per_step, "control": plan.control}
    path = plan.output / "recipe.yaml"
    path.write_text(yaml.safe_dump(recipe, sort_keys=False), encoding="utf-8")
    return path


def stage_names(recipe: Path) -> Sequence[str]:
    """Names of the recipe's stages, in order."""
    return [stage["name"] for stage in yaml.safe_load(recipe.read_text(encoding="utf-8"))["stages"]]
