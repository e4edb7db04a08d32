"""A policy with an engine, and short names for what the tests do to it."""

from __future__ import annotations

import itertools
import uuid
from typing import Any

from sqlalchemy import Row, insert, select

from spanlog import groups, policies, rewards, rollouts, steps
from spanlog.database import Database
from spanlog.groups import GroupView
from spanlog.models import Base, Engine, Group, Rollout
from spanlog.steps import SampleRow, StepCommit
from spanlog.writer import SpanDraft

START = 1_800_000_000.0


class World:
    """One policy; ``now`` is a clock that the test moves."""

    def __init__(self, database: Database, **settings: Any) -> None:
        self.database = database
        self.policy = f"policy-{uuid.uuid4().hex[:10]}"
        self.engine = f"engine-{uuid.uuid4().hex[:10]}"
        self.now = START
        self.counter = itertools.count()
        values: dict[str, Any] = {"group_size": 2, "rollouts_per_step": 0, "max_staleness": 0} | settings
        with database.begin() as conn:
            policies.put(
                conn,
                id=self.policy,
                kind="train",
                model="tiny",
                sampling={"temperature": 1.0},
                now=START,
                **values,
            )
            engine = {
                "id": self.engine,
                "policy_id": self.policy,
                "base_url": "http://127.0.0.1:1",
                "kind": "vllm",
            }
            times = {"registered_at": START, "seen_at": START}
            conn.execute(insert(Engine).values(**engine, **times, state="ready", version=0, capabilities={}))

    def group(
        self, size: int = 2, purpose: str = "train", deadline_s: float = 60.0, id: str | None = None
    ) -> GroupView:
        """A new group with a task of its own."""
        with self.database.begin() as conn:
            return groups.create_group(
                conn,
                id=id,
                policy_id=self.policy,
                task={"payload": {"problem": next(self.counter)}},
                size=size,
                purpose=purpose,
                deadline_at=self.now + deadline_s,
                now=self.now,
            )

    def claim(self, rollout_id: str, runner: str = "runner") -> str:
        with self.database.begin() as conn:
            return rollouts.claim(conn, rollout_id, runner, "command", self.now)

    def finish(self, rollout_id: str, state: str = "succeeded") -> None:
        with self.database.begin() as conn:
            rollouts.finish(conn, rollout_id, state, None, None, self.now)

    def reward(self, rollout_id: str, value: float, key: str | None = None, name: str = "reward") -> Row[Any]:
        with self.database.begin() as conn:
            return rewards.add(
                conn,
                rollout_id=rollout_id,
                span_id=None,
                name=name,
                value=value,
                source="test",
                idempotency_key=key,
                now=self.now,
            )

    def settled_group(self, size: int = 2) -> str:
        """A group whose rollouts all succeeded with a reward."""
        group = self.group(size)
        with self.database.begin() as conn:
            for index, rollout in enumerate(group.rollouts):
                rollouts.claim(conn, rollout.id, "runner", "command", self.now)
                rewards.add(
                    conn,
                    rollout_id=rollout.id,
                    span_id=None,
                    name="reward",
                    value=float(index),
                    source="test",
                    idempotency_key=None,
                    now=self.now,
                )
                rollouts.finish(conn, rollout.id, "succeeded", None, None, self.now)
        return group.id

    def take_over(self) -> int:
        with self.database.begin() as conn:
            return steps.take_over(conn, self.policy)

    def lease(self, count: int, fence: int, ttl_s: float = 60.0) -> list[str]:
        with self.database.begin() as conn:
            return groups.lease(
                conn,
                policy_id=self.policy,
                count=count,
                owner="trainer",
                fence=fence,
                ttl_s=ttl_s,
                now=self.now,
            )

    def commit(
        self, fence: int, group_ids: list[str], number: int, version: int, checkpoint: str | None = "folder"
    ) -> str:
        rollout_ids = self.column(Rollout, Rollout.id, Rollout.group_id.in_(group_ids))
        samples = [SampleRow(rollout_id, [], "rows/1", "hash", 8, 4, 0.5, 0) for rollout_id in rollout_ids]
        step = StepCommit(
            policy_id=self.policy,
            fence=fence,
            number=number,
            stage="rl",
            version=version,
            checkpoint_path=checkpoint,
            group_ids=group_ids,
            samples=samples,
            metrics={"loss": 0.5},
            started_at=self.now,
            committed_at=self.now,
        )
        with self.database.begin() as conn:
            return steps.commit_step(conn, step)

    def draft(self, rollout_id: str, **fields: Any) -> SpanDraft:
        """A span of three tokens, streamed within the second after ``now``."""
        values: dict[str, Any] = {
            "policy_id": self.policy,
            "engine_id": self.engine,
            "started_at": self.now,
            "ended_at": self.now + 1,
            "request": b'{"messages": [{"role": "user", "content": "2+2?"}]}',
            "reply": {"message": {"role": "assistant", "content": "4"}},
            "prompt_tokens": [1, 2, 3, 4],
            "completion_tokens": [5, 6, 7],
            "logprobs": [-0.5, -0.25, -1.0],
            "received_at": [self.now + 0.2, self.now + 0.4, self.now + 0.6],
            "stream": True,
        }
        return SpanDraft(rollout_id=rollout_id, **(values | fields))

    def column(self, table: type[Base], column: Any, *where: Any) -> list[Any]:
        """The column's values, in order of the table's id."""
        with self.database.read() as conn:
            return list(
                conn.execute(select(column).select_from(table).where(*where).order_by(column)).scalars()
            )

    def group_state(self, group_id: str) -> str:
        return self.column(Group, Group.state, Group.id == group_id)[0]

    def rollout(self, rollout_id: str) -> Row[Any]:
        with self.database.read() as conn:
            return rollouts.get(conn, rollout_id)
