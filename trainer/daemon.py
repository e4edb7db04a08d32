"""The loop: take the policy over, then for each stage wait, read, build, check, step, checkpoint, commit, publish.

The order of the last three is what makes a step happen exactly once [I6]: a checkpoint is renamed into place, then one
transaction records the step and consumes its groups, then the engines get the weights. A crash before the transaction
leaves groups that go back; a crash after it leaves weights that are published at the next start.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import structlog
import torch

from spanlog.database import Database
from spanlog.steps import SampleRow
from trainer.checkpoint import Position, find_checkpoint, prune, read_position, restore, write_checkpoint
from trainer.config import Recipe, RlStage, SftStage
from trainer.data.read import count_sft_rollouts, read_groups, read_sft
from trainer.data.retokenize import Retokenizer
from trainer.data.samples import BUILDER, RolloutData, Sample, build_samples
from trainer.data.tokenizer_check import check_tokenizer
from trainer.errors import CheckpointUnusable, NothingToTrain, Stopped
from trainer.folders import check_output
from trainer.ledger import Ledger, check_source
from trainer.model import Model
from trainer.objectives import rl, sft
from trainer.optimizer import Optimizer
from trainer.parity import ParityGate
from trainer.publishing import Publisher

log = structlog.get_logger("trainer")

PATIENCE = 3
"""Batches in a row without a usable span before the run stops."""


class Trainer:
    """One run of one recipe."""

    def __init__(self, recipe: Recipe, database: Database, *, resume: bool = False) -> None:
        """Loads the model, from the last checkpoint if ``resume``, and takes the policy over. Raises ``TrainerError``.

        In this order: a start that is refused leaves a trainer that holds the policy alone.
        """
        self.recipe = recipe
        self.stopping = False
        if recipe.model.threads:
            torch.set_num_threads(recipe.model.threads)
        torch.manual_seed(recipe.seed)
        self.checkpoints = recipe.output / "checkpoints"
        self.ledger = Ledger(database, recipe)
        self._look_back(resume)
        check_output(recipe.output)
        self.model = Model(recipe.model, self.resumed_from)
        loaded = self.resumed_from
        self.ledger.take_over()
        self._look_back(resume)
        if self.resumed_from != loaded:  # another trainer committed meanwhile
            self.model = Model(recipe.model, self.resumed_from)
        self.publisher = Publisher(self.ledger, self.model)
        self.gate = ParityGate(recipe.parity, recipe.rounds)
        self.seconds: dict[str, float] = {}
        self.unusable_in_a_row = 0

    def run(self) -> None:
        """Runs the recipe's stages from where the run stands to the end. Raises ``Stopped`` when asked to stop."""
        try:
            self.publisher.bring_up_to_date(self.position, self.committed)
            for index in range(self.position.stage, len(self.recipe.stages)):
                stage = self.recipe.stages[index]
                first = self.position.stage_step if index == self.position.stage else 0
                if first < stage.steps:
                    self._run_stage(index, stage, first)
            log.info("done", steps=self.position.number, version=self.publisher.version)
        finally:
            self.ledger.release()

    def stop(self, *_: object) -> None:
        """Asks the loop to stop at the next safe place. Usable as a signal handler; a second call interrupts."""
        if self.stopping:
            raise KeyboardInterrupt
        self.stopping = True

    def check_stop(self) -> None:
        if self.stopping:
            raise Stopped("stopped; resume with --resume")

    def _run_stage(self, index: int, stage: SftStage | RlStage, first: int) -> None:
        optimizer = Optimizer(self.model, self.recipe.optimizer)
        if self.resumed_from is not None:
            restore(self.resumed_from, optimizer if first else None)
            self.resumed_from = None
        log.info("stage", name=stage.name, objective=stage.objective, first=first, steps=stage.steps)
        if isinstance(stage, SftStage):
            self._run_sft(index, stage, first, optimizer)
            return
        for step in range(first, stage.steps):
            self._rl_step(index, stage, step, optimizer)

    def _rl_step(self, index: int, stage: RlStage, step: int, optimizer: Optimizer) -> None:
        self.seconds, started_at, version = {}, time.time(), self.publisher.version
        with self._clock("wait"):
            group_ids = self._wait_for_groups(stage, step)
        with self._clock("build"):
            with self.ledger.database.read() as conn:
                groups = read_groups(conn, group_ids)
            batch = rl.prepare(groups, stage, [self.recipe.seed, index, step])
            self._check_batch(groups, batch)
        with self._clock("forward_backward"):
            metrics = batch.metrics | rl.update(
                self.model,
                optimizer,
                batch,
                stage,
                lr=stage.learning_rate(step),
                version=version,
                judge=self.gate.judge,
                stop=self.check_stop,
            )
        rows = sample_rows(stage, batch.samples, batch.rollout_ids, batch.advantages)
        self._finish_step(index, stage, step, optimizer, metrics, rows, started_at)

    def _run_sft(self, index: int, stage: SftStage, first: int, optimizer: Optimizer) -> None:
        self.seconds, started_at = {}, time.time()
        with self._clock("wait"):
            self._wait_for_traffic(stage)
        with self._clock("build"):
            rollout_ids, rollouts, metrics = self._read_sft(stage)
        for step in range(first, stage.steps):
            chosen = sft.draw(len(rollouts), stage, step, [self.recipe.seed, index])
            with self._clock("forward_backward"):
                metrics |= sft.update(
                    self.model,
                    optimizer,
                    [rollouts[place] for place in chosen],
                    stage,
                    lr=stage.learning_rate(step),
                    stop=self.check_stop,
                )
            log.info(
                "sft", step=step + 1, of=stage.steps, nll=round(metrics["nll"], 4), lr=metrics["optimizer/lr"]
            )
            curve = {f"{stage.name}/{name}": metrics[name] for name in ("nll", "loss", "optimizer/grad_norm")}
            self.ledger.add_metrics(None, step + 1, curve)
            every = self.recipe.checkpoint.every_steps
            if every and (step + 1) % every == 0 and step + 1 < stage.steps:
                path = self._checkpoint(self._next_position(index, stage, step, committed=False), optimizer)
                self._prune(path)
        rows = sample_rows(stage, [sample for samples in rollouts for sample in samples], rollout_ids, None)
        self._finish_step(index, stage, stage.steps - 1, optimizer, metrics, rows, started_at)

    def _finish_step(
        self,
        index: int,
        stage: SftStage | RlStage,
        step: int,
        optimizer: Optimizer,
        metrics: dict[str, float],
        rows: list[SampleRow],
        started_at: float,
    ) -> None:
        """Checkpoint, commit, publish: in this order [I6]. Nothing here looks at ``stopping``: it ends what it began."""
        position = self._next_position(index, stage, step, committed=True)
        version = position.weights_version or 0
        path = None
        every, last = self.recipe.checkpoint.every_steps, step + 1 == stage.steps
        if last or (every and (step + 1) % every == 0):
            with self._clock("checkpoint"):
                path = self._checkpoint(position, None if last else optimizer)
        with self._clock("export"):
            weights = self.publisher.export(version)
        self.seconds["optimizer"], optimizer.seconds = optimizer.seconds, 0.0
        self.seconds["forward_backward"] -= self.seconds["optimizer"]
        metrics |= {"version": float(version)} | {
            f"seconds/{name}": value for name, value in self.seconds.items()
        }
        step_id = self.ledger.commit(
            number=position.number,
            stage=stage.name,
            version=version,
            checkpoint=path,
            samples=rows,
            metrics=metrics,
            started_at=started_at,
        )
        self.position = position
        with self._clock("publish"):
            self.publisher.publish(version, weights, step_id)
        total = time.time() - started_at
        self.ledger.add_metrics(
            step_id, position.number, {"seconds/publish": self.seconds["publish"], "seconds/total": total}
        )
        if path is not None:
            self.committed = self.ledger.last_kept_step()
            self._prune(path)
        log.info("step", stage=stage.name, step=step + 1, of=stage.steps, **summary(metrics, total))

    def _next_position(
        self, index: int, stage: SftStage | RlStage, step: int, *, committed: bool
    ) -> Position:
        return Position(
            number=self.position.number + committed,
            weights_version=self.ledger.next_version() if committed else None,
            stage=index,
            stage_name=stage.name,
            stage_step=step + 1,
            fence=self.ledger.fence,
        )

    def _checkpoint(self, position: Position, optimizer: Optimizer | None) -> Path:
        return write_checkpoint(self.checkpoints, position, self.model, optimizer)

    def _prune(self, newest: Path) -> None:
        """Never the one that the last committed step names: a restart looks for it."""
        named = self.committed.checkpoint if self.committed else None
        always = [newest] if named is None else [newest, Path(named)]
        prune(self.checkpoints, self.recipe.checkpoint.keep, always)

    def _wait_for_groups(self, stage: RlStage, step: int) -> list[str]:
        told = time.monotonic()
        while not (group_ids := self.ledger.lease(stage.groups_per_step)):
            self.check_stop()
            self.publisher.republish_stale()
            if time.monotonic() - told > 30:
                told = time.monotonic()
                log.info(
                    "waiting for rollouts", stage=stage.name, step=step + 1, groups=stage.groups_per_step
                )
            time.sleep(self.recipe.poll_s)
        return group_ids

    def _wait_for_traffic(self, stage: SftStage) -> None:
        check_source(self.ledger, stage)
        told = 0.0
        while True:
            with self.ledger.database.read() as conn:
                found = count_sft_rollouts(conn, stage.source_policy, rewarded=stage.filter == "rewarded")
            if found >= stage.rollouts:
                return
            self.check_stop()
            self.publisher.republish_stale()
            if time.monotonic() - told > 30:
                told = time.monotonic()
                log.info(
                    "waiting for traffic", policy=stage.source_policy, found=found, wanted=stage.rollouts
                )
            time.sleep(self.recipe.poll_s)

    def _read_sft(self, stage: SftStage) -> tuple[list[str], list[list[Sample]], dict[str, float]]:
        """Ids and samples of the rollouts that have any, and how the others fell out."""
        own = stage.source_policy == self.recipe.policy
        retokenizer = Retokenizer(self.model.tokenizer, self.model.end_of_turn)
        with self.ledger.database.read() as conn:
            found = read_sft(
                conn,
                stage.source_policy,
                limit=stage.rollouts,
                rewarded=stage.filter == "rewarded",
                own=own,
                retokenizer=retokenizer,
            )
        metrics: dict[str, float] = {}
        ids: list[str] = []
        rollouts: list[list[Sample]] = []
        for rollout in found:
            samples, counts = build_samples(len(ids), rollout.turns)
            for reason, count in counts.items():
                metrics[f"spans/{reason}"] = metrics.get(f"spans/{reason}", 0.0) + count
            if samples:
                ids.append(rollout.id)
                rollouts.append(samples)
        if not rollouts:
            raise NothingToTrain(
                f"stage {stage.name}: no reply of {stage.source_policy} can be learned from {metrics}"
            )
        return ids, rollouts, metrics

    def _check_batch(self, groups: Sequence[Sequence[RolloutData]], batch: rl.RlBatch) -> None:
        """Raises ``NothingToTrain`` at the third batch in a row without a usable span. Those before it are consumed by
        steps that change nothing: given back, the oldest groups would stop every restart."""
        turns = [turn for group in groups for rollout in group for turn in rollout.turns]
        self.unusable_in_a_row = 0 if batch.metrics.get("spans/used") else self.unusable_in_a_row + 1
        if self.unusable_in_a_row:
            reasons = {name: int(value) for name, value in batch.metrics.items() if name.startswith("spans/")}
            problem = (
                f"no span of {len(batch.rollout_ids)} rollouts can be trained on: {reasons or 'no spans'}"
            )
            if self.unusable_in_a_row >= PATIENCE:
                raise NothingToTrain(f"{problem}, {PATIENCE} batches in a row")
            log.warning("a batch is consumed without training", problem=problem)
        check_tokenizer(turns, self.model.vocabulary)

    def _look_back(self, resume: bool) -> None:
        """Where the run stands, by the database and by the output folder."""
        self.committed = self.ledger.last_kept_step()
        self.resumed_from = self._find_checkpoint(resume)
        self.position = self._start_position()

    def _find_checkpoint(self, resume: bool) -> Path | None:
        number, path = (self.committed.number, self.committed.checkpoint) if self.committed else (0, None)
        if path is not None and Path(path).parent != self.checkpoints.resolve():
            if resume:
                raise CheckpointUnusable(
                    f"the last step of policy {self.recipe.policy} has its checkpoint in {path}; resume with that run's "
                    "output, or start anew without --resume"
                )
            path = None  # a new run on a policy that another one trained
        found = find_checkpoint(self.checkpoints, number, path, known=self.ledger.has_stepped())
        if found is not None and not resume:
            raise CheckpointUnusable(
                f"{self.recipe.output} holds a run; go on with --resume, or choose another output"
            )
        return found

    def _start_position(self) -> Position:
        if self.resumed_from is None:
            number = self.committed.number if self.committed else 0
            return Position(number, None, 0, self.recipe.stages[0].name, 0, self.ledger.fence)
        position = read_position(self.resumed_from)
        stages = self.recipe.stages
        if position.stage >= len(stages) or stages[position.stage].name != position.stage_name:
            raise CheckpointUnusable(
                f"the run stopped in stage {position.stage_name}, which this recipe does not have at place "
                f"{position.stage + 1}; resume with the recipe it was started with"
            )
        return position

    @contextmanager
    def _clock(self, name: str) -> Iterator[None]:
        begin = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - begin


def sample_rows(
    stage: SftStage | RlStage,
    samples: Sequence[Sample],
    rollout_ids: Sequence[str],
    advantages: Sequence[float] | None,
) -> list[SampleRow]:
    """What the step's rows were made of, for the record [I12]. Without advantages (SFT) each token counts as 1."""
    config_hash = hashlib.sha256(stage.model_dump_json().encode()).hexdigest()[:16]
    return [
        SampleRow(
            rollout_id=rollout_ids[sample.rollout],
            span_ids=list(sample.span_ids),
            builder=BUILDER,
            config_hash=config_hash,
            token_count=len(sample.tokens),
            target_count=sample.target_count,
            advantage=1.0 if advantages is None else advantages[sample.rollout],
            oldest_version=sample.oldest_version,
        )
        for sample in samples
    ]


def summary(metrics: dict[str, float], total: float) -> dict[str, Any]:
    """The few numbers that a log line shows."""
    names = {
        "reward": "reward/mean",
        "zero_var": "groups/zero_variance",
        "loss": "loss",
        "grad": "optimizer/grad_norm",
        "entropy": "policy/entropy",
        "gap": "parity/gap_mean",
        "stale": "staleness/max",
        "targets": "tokens/targets",
        "version": "version",
        "wait_s": "seconds/wait",
        "train_s": "seconds/forward_backward",
    }
    shown = {short: float(f"{metrics[name]:.4g}") for short, name in names.items() if name in metrics}
    return shown | {"total_s": round(total, 2)}
