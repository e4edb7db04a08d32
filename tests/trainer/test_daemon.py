"""Whole runs over a span log that is filled by hand, without an engine."""

from __future__ import annotations

from typing import Any

from tests.trainer.world import World
from trainer.daemon import Trainer

SFT: dict[str, Any] = {
    "name": "format",
    "objective": "sft",
    "source_policy": "teacher",
    "rollouts": 8,
    "batch": 4,
    "steps": 3,
    "lr": 1e-3,
    "warmup_steps": 1,
    "decay": "second_half",
}
RL: dict[str, Any] = {
    "name": "skill",
    "objective": "rl",
    "steps": 2,
    "groups_per_step": 2,
    "lr": 1e-3,
    "micro_batch": 4,
}


def test_a_recipe_runs_from_sft_to_rl(world: World) -> None:
    world.teach(2)
    recipe = world.recipe(SFT)
    Trainer(recipe, world.database).run()
    world.play(4, lambda group, index: float(index % 2))
    # the same run goes on with more stages
    recipe = world.recipe(SFT, RL | {"steps": 1})
    Trainer(recipe, world.database, resume=True).run()
    rows = world.step_rows()
    assert [row.version for row in rows] == [1, 2]
    assert rows[1].metrics["reward/mean"] == 0.5
    assert rows[1].metrics["parity/gap_max"] < 2e-5
    assert sorted(world.group_states().values()) == ["consumed", "consumed", "settled", "settled"]
