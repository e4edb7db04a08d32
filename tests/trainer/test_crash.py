"""I6: whatever moment a trainer dies at, each group is trained on exactly once, and a resumed run ends where one that
never died does, bit for bit."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import func, select

from spanlog.database import open_database
from spanlog.models import Group, TrainSample, TrainStep
from tests.trainer.stages import RL, SFT
from tests.trainer.world import World
from trainer.config import Recipe
from trainer.daemon import Trainer
from trainer.errors import TrainerError

STEPS = 4
Sabotage = Callable[[Trainer], None]


def die(*_: object, **__: object) -> None:
    """As SIGKILL does: nothing is cleaned up."""
    os._exit(9)


def before_commit(step: int) -> Sabotage:
    """After the checkpoint was renamed, before the transaction."""
    return lambda trainer: on_call(trainer.ledger, "commit", step)


def after_commit(step: int) -> Sabotage:
    """After the transaction, before the publish."""
    return lambda trainer: on_call(trainer.publisher, "publish", step)


def between_sft_steps(step: int) -> Sabotage:
    return lambda trainer: on_call(trainer.ledger, "add_metrics", step)


def on_call(owner: object, name: str, number: int) -> None:
    """The ``number``-th call (from 1) of a method kills the process before it does anything."""
    method, calls = getattr(owner, name), iter(range(1, number + 1))
    setattr(owner, name, lambda *args, **kwargs: die() if next(calls) == number else method(*args, **kwargs))


def run_and_die(recipe: Recipe, sabotage: Sabotage, *, resume: bool = False) -> None:
    """Runs in a child that the sabotage kills."""
    child = os.fork()
    if child == 0:
        try:
            trainer = Trainer(recipe, open_database(recipe.database, migrate=False), resume=resume)
            sabotage(trainer)
            trainer.run()
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9


def fill(world: World) -> None:
    world.play(2 * STEPS, lambda group, index: float((index + group) % 3 == 0))


def assert_consumed_once(world: World) -> None:
    with world.database.read() as conn:
        groups = conn.execute(select(Group.state, Group.step_id).where(Group.policy_id == "student")).all()
        steps = conn.execute(select(TrainStep.id).where(TrainStep.void.is_(False))).scalars().all()
        rows = conn.execute(
            select(TrainSample.rollout_id, func.count())
            .where(TrainSample.step_id.in_(steps))
            .group_by(TrainSample.rollout_id)
        ).all()
    assert {group.state for group in groups} == {"consumed"}
    assert {group.step_id for group in groups} == set(steps)
    assert len(rows) == 8 * STEPS and {count for _, count in rows} == {1}


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory, tiny_model: Any) -> Any:
    """Final weights of a run that never died."""
    world = World(tmp_path_factory.mktemp("unbroken"), tiny_model)
    fill(world)
    Trainer(world.recipe(RL | {"steps": STEPS}), world.database).run()
    world.close()
    return world.weights()


@pytest.mark.parametrize(
    ("every", "sabotage"),
    [
        (1, before_commit(3)),
        (1, after_commit(3)),
        (2, before_commit(2)),  # the first checkpoint's own step: nothing committed holds
        (2, before_commit(3)),
        (2, after_commit(3)),  # committed without a checkpoint: void, its groups train again
        (0, after_commit(4)),  # the stage's end is a checkpoint
        (0, after_commit(2)),  # no checkpoint at all: from the start
    ],
)
def test_a_run_that_died_ends_like_one_that_did_not(
    world: World, unbroken: Any, every: int, sabotage: Sabotage
) -> None:
    fill(world)
    recipe = world.recipe(RL | {"steps": STEPS}, checkpoint={"every_steps": every})
    run_and_die(recipe, sabotage)
    Trainer(recipe, world.database, resume=True).run()
    assert_consumed_once(world)
    assert world.same_weights(world.weights(), unbroken)
    assert [row.number for row in world.step_rows()] == [1, 2, 3, 4]
    versions = [row.version for row in world.step_rows()]
    assert versions == sorted(set(versions))


def test_it_may_die_twice(world: World, unbroken: Any) -> None:
    fill(world)
    recipe = world.recipe(RL | {"steps": STEPS})
    run_and_die(recipe, after_commit(1))
    run_and_die(recipe, before_commit(2), resume=True)
    Trainer(recipe, world.database, resume=True).run()
    assert_consumed_once(world)
    assert world.same_weights(world.weights(), unbroken)


def test_an_sft_stage_goes_on_from_its_own_checkpoint(world: World) -> None:
    world.teach(2)
    recipe = world.recipe(SFT, checkpoint={"every_steps": 2})
    run_and_die(recipe, between_sft_steps(4))
    resumed = Trainer(recipe, world.database, resume=True)
    assert resumed.position.stage_step == 2
    resumed.run()
    resumed_weights = world.weights()
    Trainer(world.recipe(SFT, output=str(world.folder / "other")), world.database).run()
    assert world.same_weights(world.weights(), resumed_weights)


def test_sft_checkpoints_do_not_pile_up(world: World) -> None:
    world.teach(2)
    recipe = world.recipe(SFT | {"steps": 6}, checkpoint={"every_steps": 1, "keep": 2})
    run_and_die(recipe, between_sft_steps(6))
    assert len(list((world.folder / "run" / "checkpoints").glob("step-*"))) == 2
    Trainer(recipe, world.database, resume=True).run()


def test_half_a_deleted_checkpoint_is_in_nobodys_way(world: World) -> None:
    fill(world)
    recipe = world.recipe(RL | {"steps": STEPS})
    run_and_die(recipe, after_commit(3))
    oldest = min((world.folder / "run" / "checkpoints").glob("step-*"))
    (oldest / "state.json").unlink()
    Trainer(recipe, world.database, resume=True).run()
    assert_consumed_once(world)


def test_a_refused_start_leaves_the_running_trainer_alone(world: World) -> None:
    """Typed without --resume, or with another model folder, beside a run."""
    fill(world)
    recipe = world.recipe(RL | {"steps": STEPS})
    running = Trainer(recipe, world.database)
    step = running.ledger.commit
    refused: list[str] = []

    def commit(**fields: Any) -> str:
        if fields["number"] == 1:
            return step(**fields)  # before its first checkpoint counts, a run is not known by its folder
        for wrong in (recipe, recipe.model_copy(update={"output": world.folder / "file" / "x"})):
            try:
                Trainer(wrong, world.database)
            except TrainerError as error:
                refused.append(str(error))
        return step(**fields)

    (world.folder / "file").write_text("")
    running.ledger.commit = commit
    running.run()
    assert len(refused) == 2 * (STEPS - 1)
    assert any("cannot write to" in words for words in refused)
    assert_consumed_once(world)


def test_only_the_newest_folders_are_kept(world: World) -> None:
    fill(world)
    Trainer(world.recipe(RL | {"steps": STEPS}), world.database).run()
    run = world.folder / "run"
    assert len(list((run / "checkpoints").iterdir())) == 2
    assert len(list((run / "weights").iterdir())) == 2
