"""Groups, and single rollouts as groups of one."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Query, Response
from sqlalchemy import Connection, select

from proxy.routes.control import ServicesDep, now, runner_or_admin
from proxy.schemas import GroupBody, Purpose, RolloutBody
from spanlog import groups
from spanlog.models import Task
from spanlog.states import GroupState

router = APIRouter(prefix="/api", tags=["groups"])


@router.post(
    "/groups",
    dependencies=[runner_or_admin],
    status_code=201,
    responses={
        200: {"description": "It exists already."},
        429: {"description": "Enough rollouts are outstanding."},
    },
)
def create_group(body: GroupBody, services: ServicesDep, response: Response) -> dict[str, Any]:
    """Creates a group with its queued rollouts; with an id that exists, returns that group (200).

    429 with Retry-After while too many training rollouts are under way or wait for a step.
    """
    moment = now()
    with services.database.begin() as conn:
        group = groups.create_group(
            conn,
            id=body.id,
            policy_id=body.policy,
            task=body.task.model_dump(),
            size=body.size,
            purpose=body.purpose,
            deadline_at=moment + body.deadline_s,
            now=moment,
        )
    response.status_code = 201 if group.created else 200
    return asdict(group)


@router.post("/rollouts", dependencies=[runner_or_admin], status_code=201)
def create_rollout(body: RolloutBody, services: ServicesDep, response: Response) -> dict[str, Any]:
    """Creates one rollout, as a group of one; with an id that exists, returns that one (200). 429 as for groups."""
    moment = now()
    with services.database.begin() as conn:
        group = groups.create_group(
            conn,
            id=None,
            policy_id=body.policy,
            task=body.task.model_dump(),
            size=1,
            purpose=body.purpose,
            deadline_at=moment + body.deadline_s,
            now=moment,
            rollout_ids=[body.id] if body.id else None,
        )
    response.status_code = 201 if group.created else 200
    return asdict(group.rollouts[0]) | {
        "group_id": group.id,
        "purpose": group.purpose,
        "policy_id": group.policy_id,
    }


@router.get("/groups", dependencies=[runner_or_admin])
def list_groups(
    services: ServicesDep,
    policy: str | None = None,
    purpose: Purpose | None = None,
    state: GroupState | None = None,
    limit: int = Query(100, ge=1, le=1000),
    after: str | None = Query(None, description="The last id of the page before."),
) -> dict[str, Any]:
    """Groups in order of id, with their rollouts."""
    with services.database.read() as conn:
        found = groups.list_groups(
            conn, policy_id=policy, purpose=purpose, state=state, limit=limit, after=after
        )
    return {"groups": [asdict(group) for group in found]}


@router.get("/groups/{group_id}", dependencies=[runner_or_admin])
def get_group(group_id: str, services: ServicesDep) -> dict[str, Any]:
    """A group, its rollouts with their rewards, and its task."""
    with services.database.read() as conn:
        group = groups.get(conn, group_id)
        return asdict(group) | {"task": read_task(conn, group.task_id)}


def read_task(conn: Connection, task_id: str) -> dict[str, Any]:
    row = conn.execute(select(Task.id, Task.source, Task.payload).where(Task.id == task_id)).one()
    return {"id": row.id, "source": row.source, "payload": row.payload}
