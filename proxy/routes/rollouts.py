"""A rollout's life: claimed, kept alive, rewarded, ended; and reading what it did."""

from __future__ import annotations

import dataclasses
from typing import Any

from fastapi import APIRouter
from sqlalchemy import Connection, select

from proxy.routes.control import ServicesDep, now, row_dict, runner_or_admin
from proxy.routes.groups import read_task
from proxy.schemas import ClaimBody, FinishBody, HeartbeatBody, RewardBody
from spanlog import policies, records, rewards, rollouts
from spanlog.models import Group
from spanlog.text import finite

router = APIRouter(prefix="/api/rollouts/{rollout_id}", tags=["rollouts"], dependencies=[runner_or_admin])


@router.post("/claim")
def claim(rollout_id: str, body: ClaimBody, services: ServicesDep) -> dict[str, Any]:
    """Starts the rollout and returns the key for its harness. The same runner may claim again: earlier keys end."""
    with services.database.begin() as conn:
        key = rollouts.claim(conn, rollout_id, body.runner, body.harness, now())
        row = rollouts.get(conn, rollout_id)
        policy = policies.get(conn, row.policy_id)
        task_id = conn.execute(select(Group.task_id).where(Group.id == row.group_id)).scalar_one()
        task = read_task(conn, task_id)
    services.keys.forget()
    return {
        "id": rollout_id,
        "key": key,
        "task": task,
        "purpose": row.purpose,
        "policy": {"id": policy.id, "model": policy.model},
    }


@router.post("/heartbeat")
def heartbeat(rollout_id: str, body: HeartbeatBody, services: ServicesDep) -> dict[str, Any]:
    """The runner is alive. 409 once the rollout has ended: stop the harness then."""
    with services.database.begin() as conn:
        rollouts.heartbeat(conn, rollout_id, body.runner, now())
    return {"id": rollout_id}


@router.post("/finish")
def finish(rollout_id: str, body: FinishBody, services: ServicesDep) -> dict[str, Any]:
    """Ends the rollout, with its rewards in the same transaction. The same end again changes nothing: a reward without
    an idempotency key has one made of rollout, name and span."""
    with services.database.begin() as conn:
        for reward in body.rewards:
            parts = (rollout_id, reward.name, reward.span_id)
            key = reward.idempotency_key or ":".join(part for part in parts if part)
            _add_reward(conn, rollout_id, reward.model_copy(update={"idempotency_key": key}))
        rollouts.finish(conn, rollout_id, body.state, body.error, body.info, now())
        row = rollouts.get(conn, rollout_id)
    services.keys.forget()
    return row_dict(row)


@router.post("/rewards", status_code=201)
def add_reward(rollout_id: str, body: RewardBody, services: ServicesDep) -> dict[str, Any]:
    """Adds a reward event, during the rollout, at its end, or later. The same idempotency key is the same event."""
    with services.database.begin() as conn:
        return _add_reward(conn, rollout_id, body)


@router.get("")
def get_rollout(rollout_id: str, services: ServicesDep) -> dict[str, Any]:
    """The rollout with its reward events."""
    with services.database.read() as conn:
        row = rollouts.get(conn, rollout_id)
        events = rewards.list_for_rollout(conn, rollout_id)
    return row_dict(row) | {"rewards": [row_dict(event) for event in events]}


@router.get("/spans")
def get_spans(rollout_id: str, services: ServicesDep) -> dict[str, Any]:
    """The rollout's model calls in order: requests, replies, tokens, logprobs, versions."""
    with services.database.read() as conn:
        rollouts.get(conn, rollout_id)
        spans = records.read_spans(conn, [rollout_id]).get(rollout_id, [])
    return {"spans": [span_dict(span) for span in spans]}


def _add_reward(conn: Connection, rollout_id: str, body: RewardBody) -> dict[str, Any]:
    row = rewards.add(
        conn,
        rollout_id=rollout_id,
        span_id=body.span_id,
        name=body.name,
        value=body.value,
        source=body.source,
        idempotency_key=body.idempotency_key,
        now=now(),
    )
    return row_dict(row)


def span_dict(span: records.SpanRecord) -> dict[str, Any]:
    """A span as JSON; logprobs that are no numbers become null."""
    fields = {field.name: getattr(span, field.name) for field in dataclasses.fields(span) if field.repr} | {
        "request": span.request
    }
    for name in ("prompt_tokens", "completion_tokens", "version_low", "version_high"):
        fields[name] = None if fields[name] is None else fields[name].tolist()
    if span.logprobs is not None:
        fields["logprobs"] = finite(span.logprobs.tolist())
    return fields
