"""The trainer's side of the span log: the policy it holds, the groups it leases, the steps it commits [I6].

Short transactions only: the proxy writes to the same database all the time.
"""

from __future__ import annotations

import math
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Row, func, select, update

from spanlog import groups, policies, steps
from spanlog.database import Database
from spanlog.errors import NotFound
from spanlog.locks import lock_policy
from spanlog.models import Engine, Group, TrainStep
from spanlog.states import EngineState, GroupState, PolicyKind, Purpose
from trainer.config import Recipe, RlStage, SftStage
from trainer.errors import PolicyUnusable

NEUTRAL_SAMPLING: dict[str, tuple[float, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
}
"""Values at which a sampling parameter leaves the distribution as the model gives it, apart from temperature."""


LEASE_TTL_S = 3600.0
"""Recorded with a lease, for people to see; what ends a lost trainer's leases is another one's taking over."""
SETTLE_EVERY_S = 1.0
"""How often the trainer settles groups whose deadline has passed; the proxy does too, where one runs."""


@dataclass(frozen=True)
class Committed:
    """A step as the database has it."""

    id: str
    number: int
    version: int
    checkpoint: str | None


class Ledger:
    """One trainer's hold on one policy. Every write checks the fence."""

    def __init__(self, database: Database, recipe: Recipe) -> None:
        """Checks the policy; ``take_over`` makes it this trainer's. Raises ``PolicyUnusable``."""
        self.database = database
        self.recipe = recipe
        self.owner = f"{socket.gethostname()}:{os.getpid()}"
        self.leased: list[str] = []
        self._settled_at = 0.0
        self.fence = 0
        check_policy(self.policy(), recipe)

    def take_over(self) -> None:
        """Become the policy's trainer: leases and unfinished steps of an earlier one end."""
        with self.database.begin() as conn:
            self.fence = steps.take_over(conn, self.recipe.policy)

    def policy(self) -> Row[Any]:
        """The policy's row as it is now."""
        try:
            with self.database.read() as conn:
                return policies.get(conn, self.recipe.policy)
        except NotFound:
            raise PolicyUnusable(
                f"policy {self.recipe.policy} is not in {self.database.display_url}; start the proxy on that database "
                f"and create it with `singletree policy {self.recipe.policy}`"
            ) from None

    def last_kept_step(self) -> Committed | None:
        """The newest step with a checkpoint: where a resumed run goes on. Taking over makes later ones void."""
        with self.database.read() as conn:
            row = steps.last_kept_step(conn, self.recipe.policy)
        return None if row is None else Committed(row.id, row.number, row.version, row.checkpoint_path)

    def has_stepped(self) -> bool:
        """Whether the database has any step of the policy, void ones included."""
        query = select(TrainStep.id).where(TrainStep.policy_id == self.recipe.policy)
        with self.database.read() as conn:
            return conn.execute(query.limit(1)).first() is not None

    def next_version(self) -> int:
        """The number that the next weights get; numbers are never used twice."""
        with self.database.begin() as conn:
            return steps.next_version(conn, self.recipe.policy)

    def lease(self, count: int) -> list[str]:
        """``count`` settled groups, oldest first, or none if there are fewer.

        Cheap to call often: it takes the database's write lock once a second, for groups past their deadline, and
        else only if there may be enough.
        """
        due = time.monotonic() - self._settled_at >= SETTLE_EVERY_S
        if not due and not self._may_have(count):
            return []
        with self.database.begin() as conn:
            now = time.time()
            if due:
                groups.settle_due(conn, self.recipe.policy, now)
                self._settled_at = time.monotonic()
            self.leased = groups.lease(
                conn,
                policy_id=self.recipe.policy,
                count=count,
                owner=self.owner,
                fence=self.fence,
                ttl_s=LEASE_TTL_S,
                now=now,
            )
        return self.leased

    def _may_have(self, count: int) -> bool:
        """Whether ``count`` training groups are settled, or leased (perhaps by a trainer that is gone)."""
        query = select(func.count()).where(
            Group.policy_id == self.recipe.policy,
            Group.purpose == Purpose.TRAIN,
            Group.state.in_([GroupState.SETTLED, GroupState.LEASED]),
        )
        with self.database.read() as conn:
            return conn.execute(query).scalar_one() >= count

    def release(self) -> None:
        """Gives back what is leased and not consumed."""
        if self.leased:
            with self.database.begin() as conn:
                groups.release(conn, group_ids=self.leased, fence=self.fence)
            self.leased = []

    def commit(
        self,
        *,
        number: int,
        stage: str,
        version: int,
        checkpoint: Path | None,
        samples: list[steps.SampleRow],
        metrics: dict[str, float],
        started_at: float,
    ) -> str:
        """One transaction: the step, its samples and metrics, the leased groups consumed. Returns the step's id."""
        step = steps.StepCommit(
            policy_id=self.recipe.policy,
            fence=self.fence,
            number=number,
            stage=stage,
            version=version,
            checkpoint_path=None if checkpoint is None else str(checkpoint.resolve()),
            group_ids=self.leased,
            samples=samples,
            metrics=finite(metrics),
            started_at=started_at,
            committed_at=time.time(),
        )
        with self.database.begin() as conn:
            step_id = steps.commit_step(conn, step)
        self.leased = []
        return step_id

    def add_metrics(self, step_id: str | None, step: int, metrics: dict[str, float]) -> None:
        """Adds to the plots, and to a step that is already committed (what its publish took). Raises ``FenceLost``.

        The fence matters between the commits of an SFT stage: a trainer that was superseded stops before it writes, or
        prunes, checkpoints where its successor keeps its own.
        """
        metrics = finite(metrics)
        with self.database.begin() as conn:
            steps.check_fence(lock_policy(conn, self.recipe.policy), self.fence)
            steps.add_metrics(conn, self.recipe.policy, step, metrics, time.time())
            if step_id is not None:
                known = conn.execute(select(TrainStep.metrics).where(TrainStep.id == step_id)).scalar_one()
                conn.execute(update(TrainStep).where(TrainStep.id == step_id).values(metrics=known | metrics))

    def has_engine(self) -> bool:
        """Whether the policy has an engine that could take weights, whatever its state."""
        query = select(Engine.id).where(
            Engine.policy_id == self.recipe.policy, Engine.kind == "vllm", Engine.state != EngineState.GONE
        )
        with self.database.read() as conn:
            return conn.execute(query.limit(1)).first() is not None

    def publish_without_engine(self, version: int, path: Path, step_id: str | None) -> None:
        """Commits a version that no engine serves (offline training)."""
        policy, now = self.policy(), time.time()
        with self.database.begin() as conn:
            steps.stage_version(conn, policy.id, self.fence, version, str(path), step_id, now)
            steps.publish_version(
                conn, policy.id, self.fence, policy.version, version, str(path), step_id, now
            )


def check_policy(policy: Row[Any], recipe: Recipe) -> None:
    """Raises ``PolicyUnusable`` if training could not work, or would be wrong, with the policy as it is set up."""
    if policy.kind != PolicyKind.TRAIN:
        raise PolicyUnusable(
            f"policy {policy.id} is {policy.kind}: only a policy of kind train can be trained"
        )
    for name, neutral in NEUTRAL_SAMPLING.items():
        value = policy.sampling.get(name)
        if value is not None and value not in neutral:
            raise PolicyUnusable(
                f"policy {policy.id} samples with {name} {value}, whose logprobs cannot be recomputed; set it to {neutral[-1]}"
            )
    if (temperature := policy.sampling.get("temperature")) is not None and temperature <= 0:
        raise PolicyUnusable(f"policy {policy.id} samples greedily; set its temperature above 0")
    bound = (policy.max_staleness + 1) * policy.rollouts_per_step
    for stage in recipe.stages:
        if isinstance(stage, RlStage) and 0 < bound < stage.groups_per_step * policy.group_size:
            raise PolicyUnusable(
                f"stage {stage.name} needs {stage.groups_per_step} groups of {policy.group_size}, but policy {policy.id} "
                f"admits only {bound} rollouts at a time; raise its rollouts_per_step"
            )


def check_source(ledger: Ledger, stage: SftStage) -> None:
    """Raises ``PolicyUnusable`` if the policy that an SFT stage learns from does not exist."""
    try:
        with ledger.database.read() as conn:
            policies.get(conn, stage.source_policy)
    except NotFound:
        raise PolicyUnusable(
            f"stage {stage.name} learns from policy {stage.source_policy}, which is not in the database; "
            f"create it with PUT /api/policies/{stage.source_policy}"
        ) from None


def finite(metrics: dict[str, float]) -> dict[str, float]:
    """Without values that JSON and plots cannot hold."""
    return {name: float(value) for name, value in metrics.items() if math.isfinite(value)}
