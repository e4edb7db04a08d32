"""Whole runs over a span log that is filled by hand, without an engine: what is done, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select, update

from spanlog.errors import FenceLost
from spanlog.models import Group, Metric, Policy, Span, TrainSample
from tests.trainer.stages import RL, SFT
from tests.trainer.world import POLICY, World
from trainer.config import Recipe
from trainer.daemon import Trainer
from trainer.errors import (
    CheckpointUnusable,
    ModelUnusable,
    NothingToTrain,
    ParityFailed,
    PolicyUnusable,
    Stopped,
    TokenizerMismatch,
)


def every_second(group: int, index: int) -> float:
    return float(index % 2)


def test_a_recipe_runs_from_sft_to_rl(world: World) -> None:
    world.teach(2)
    Trainer(world.recipe(SFT), world.database).run()
    world.play(3, every_second)
    Trainer(world.recipe(SFT, RL | {"steps": 1}), world.database, resume=True).run()
    first, second = world.step_rows()
    assert [first.version, second.version] == [1, 2]
    assert first.metrics["spans/used"] == 16.0
    assert second.metrics["reward/mean"] == 0.5 and second.metrics["reward/std"] == 0.5
    assert second.metrics["parity/tokens"] == 80.0 and second.metrics["parity/gap_max"] < 2e-5
    assert second.metrics["samples/per_rollout"] == 1.0 and second.metrics["staleness/max"] == 0.0
    for part in ("wait", "build", "forward_backward", "optimizer", "checkpoint", "publish", "total"):
        assert second.metrics[f"seconds/{part}"] >= 0.0
    assert sorted(world.group_states().values()) == ["consumed", "consumed", "settled"]
    with world.database.read() as conn:
        query = select(Metric.value).where(Metric.name == "form/nll").order_by(Metric.step)
        losses = list(conn.execute(query).scalars())
        samples = conn.execute(select(TrainSample).where(TrainSample.step_id == second.id)).all()
    assert len(losses) == 4 and losses[-1] < losses[0]
    assert len(samples) == 8 and {sample.builder for sample in samples} == {"rows/2"}


def test_policy_gradient_raises_what_was_rewarded(world: World) -> None:
    """The rewarded rollouts' tokens become likelier, the others' less likely."""
    group_ids = world.play(2, every_second)
    Trainer(world.recipe(RL | {"steps": 1, "lr": 3e-3}), world.database).run()
    changes = world.logprob_changes(group_ids)
    assert (
        min(change for index, change in changes if index % 2)
        > 0
        > max(c for index, c in changes if index % 2 == 0)
    )


def test_rollouts_that_come_while_it_waits_are_trained_on(world: World) -> None:
    trainer = Trainer(world.recipe(RL | {"steps": 2}), world.database)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    for _ in range(2):
        world.play(2, every_second)
    thread.join(60)
    assert not thread.is_alive()
    assert world.step_rows()[0].metrics["parity/tokens"] == 80.0
    assert set(world.group_states().values()) == {"consumed"}


def test_stop_gives_the_groups_back(world: World) -> None:
    world.play(1, every_second)
    trainer = Trainer(world.recipe(RL), world.database)
    threading.Timer(0.3, trainer.stop).start()
    with pytest.raises(Stopped):
        trainer.run()
    world.play(1, every_second)
    trainer.stopping = True
    with pytest.raises(Stopped):
        trainer.run()
    assert set(world.group_states().values()) == {"settled"} and world.step_rows() == []


def test_groups_without_signal_are_consumed_and_change_nothing(world: World) -> None:
    world.play(2, lambda group, index: 1.0)
    Trainer(world.recipe(RL | {"steps": 1}), world.database).run()
    (row,) = world.step_rows()
    assert row.metrics["groups/zero_variance"] == 1.0 and row.metrics["optimizer/grad_norm"] == 0.0
    assert world.same_weights(world.weights(), world.model)


def test_learning_rate_zero_changes_nothing(world: World) -> None:
    world.play(2, every_second)
    Trainer(world.recipe(RL | {"steps": 1, "lr": 0.0}), world.database).run()
    (row,) = world.step_rows()
    assert row.metrics["optimizer/grad_norm"] > 0.0
    assert world.same_weights(world.weights(), world.model)


def test_a_missing_reward_is_left_out(world: World) -> None:
    world.play(2, lambda group, index: None if index == 3 else float(index % 2))
    Trainer(world.recipe(RL | {"steps": 1}), world.database).run()
    (row,) = world.step_rows()
    assert row.metrics["reward/missing"] == 2.0 and row.metrics["reward/mean"] == pytest.approx(1 / 3)
    with world.database.read() as conn:
        assert len(conn.execute(select(TrainSample.id)).all()) == 6


def test_a_logprob_gap_stops_the_run_before_the_optimiser_moves(world: World) -> None:
    world.logprob_error = 1e-3
    world.play(2, every_second)
    with pytest.raises(ParityFailed, match="version 0: largest logprob gap"):
        Trainer(world.recipe(RL), world.database).run()
    assert world.step_rows() == [] and set(world.group_states().values()) == {"settled"}


def test_unknown_versions_are_not_trained_on(world: World) -> None:
    """Nor do they stop a run at once, or each of its restarts: two batches are consumed, the third is given back."""
    world.play(6, every_second)
    with world.database.begin() as conn:
        conn.execute(update(Span).values(trainable=False, untrainable_reason="unknown_version"))
    with pytest.raises(NothingToTrain, match=r"untrainable:unknown_version': 16.*3 batches in a row"):
        Trainer(world.recipe(RL | {"steps": 4}), world.database).run()
    assert len(world.step_rows()) == 2
    assert world.same_weights(world.weights(), world.model)
    with world.database.read() as conn:
        states = conn.execute(select(Group.state).where(Group.policy_id == "student")).scalars().all()
    assert sorted(states) == ["consumed"] * 4 + ["settled"] * 2


def test_tokens_of_another_model_are_refused(world: World) -> None:
    world.first_token = 5000
    world.play(2, every_second)
    with pytest.raises(TokenizerMismatch, match="5000"):
        Trainer(world.recipe(RL), world.database).run()


def test_a_superseded_trainer_stops_in_the_middle_of_an_sft_stage(world: World) -> None:
    """It leaves the folder, where its successor keeps its checkpoints, alone."""
    world.teach(2)
    recipe = world.recipe(SFT, checkpoint={"every_steps": 1})
    first = Trainer(recipe, world.database)
    draw, checkpoints = first.model.logprobs, world.folder / "run" / "checkpoints"

    def superseded(batch: Any) -> Any:
        if len(list(checkpoints.glob("step-*"))) == 1:
            first.model.logprobs = draw
            Trainer(recipe, world.database, resume=True)
        return draw(batch)

    first.model.logprobs = superseded
    with pytest.raises(FenceLost):
        first.run()
    assert len(list(checkpoints.glob("step-*"))) == 1


def test_another_trainer_takes_over(world: World) -> None:
    world.play(2, every_second)
    first = Trainer(world.recipe(RL | {"steps": 1}), world.database)
    first.ledger.lease(2)
    second = Trainer(world.recipe(RL | {"steps": 1}), world.database)
    second.run()
    with pytest.raises(FenceLost):
        first.run()
    assert len(world.step_rows()) == 1


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"policy": "nobody"}, PolicyUnusable, "singletree policy nobody"),
        ({"policy": "teacher"}, PolicyUnusable, "is frozen"),
        (
            {"model": {"path": "/nowhere", "autocast": "none"}},
            ModelUnusable,
            "cannot load the model /nowhere",
        ),
    ],
)
def test_mistakes_are_named_in_one_line(
    world: World, changes: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error) as caught:
        Trainer(world.recipe(RL, **changes), world.database)
    assert says in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"sampling": {"top_p": 0.9}}, "top_p 0.9"),
        ({"sampling": {"temperature": 0}}, "greedily"),
        ({"rollouts_per_step": 4}, "admits only 4 rollouts"),
    ],
)
def test_policies_that_cannot_be_trained_exactly_are_refused(
    world: World, settings: dict[str, Any], says: str
) -> None:
    with world.database.begin() as conn:
        conn.execute(update(Policy).where(Policy.id == POLICY).values(**settings))
    with pytest.raises(PolicyUnusable, match=says):
        Trainer(world.recipe(RL), world.database)


def test_a_source_that_does_not_exist_is_named(world: World) -> None:
    with pytest.raises(PolicyUnusable, match="nobody"):
        Trainer(world.recipe(SFT | {"source_policy": "nobody"}), world.database).run()


def test_a_used_output_needs_resume_and_the_same_stages(world: World) -> None:
    world.teach(2)
    Trainer(world.recipe(SFT), world.database).run()
    with pytest.raises(CheckpointUnusable, match="--resume"):
        Trainer(world.recipe(SFT), world.database)
    with pytest.raises(CheckpointUnusable, match="stage form"):
        Trainer(world.recipe(RL), world.database, resume=True)


def test_a_new_run_on_a_used_policy_publishes_what_it_starts_from(world: World) -> None:
    world.play(2, every_second)
    Trainer(world.recipe(RL | {"steps": 1}), world.database).run()
    assert not world.same_weights(world.weights(), world.model)
    recipe = world.recipe(RL | {"steps": 1, "lr": 0.0}, output=str(world.folder / "other"))
    with pytest.raises(CheckpointUnusable, match="without --resume"):
        Trainer(recipe, world.database, resume=True)
    world.play(2, every_second)  # sampled from version 1, which is not what the new run starts from
    Trainer(recipe, world.database).run()
    assert world.same_weights(world.weights(), world.model)
    old, new = world.step_rows()
    assert (old.version, new.version) == (1, 3)  # 2 is the start
    assert new.metrics["staleness/max"] == 1.0 and new.metrics["parity/tokens"] == 0.0


def test_the_command_line_names_mistakes(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from singletree import cli

    def run(recipe: Recipe | None) -> tuple[int, str]:
        path = tmp_path / "recipe.yaml"
        if recipe is not None:
            path.write_text(recipe.model_dump_json())
        with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as caught:
            patch.setattr("sys.argv", ["singletree", "train", str(path)])
            cli.main()
        return int(caught.value.code or 0), capsys.readouterr().err

    code, said = run(None)
    assert code == 2 and said.startswith("error: no recipe at")
    code, said = run(world.recipe(RL, policy="nobody"))
    assert code == 2 and said.splitlines()[-1].startswith("error: policy nobody is not in")
