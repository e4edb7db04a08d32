"""Policies: creating them, changing what may change, and counting what they have in flight."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, func, select, update

from spanlog.errors import Conflict, NotFound
from spanlog.locks import lock_policy
from spanlog.models import Group, Policy, TrainStep
from spanlog.states import GroupState, History, Mode, PolicyKind, Purpose, Untrainable
from spanlog.upsert import insert_or_ignore

OUTSTANDING_STATES = (GroupState.OPEN, GroupState.SETTLED, GroupState.LEASED)


def put(
    conn: Connection,
    *,
    id: str,
    kind: str,
    model: str,
    sampling: dict[str, Any],
    group_size: int,
    rollouts_per_step: int,
    max_staleness: int,
    mode: str = Mode.OBSERVE,
    history: str = History.APPEND_ONLY,
    untrainable: str = Untrainable.SERVE,
    now: float,
) -> Row[Any]:
    """Create the policy, or bring an existing one to these settings.

    Raises Conflict if its kind would change, ValueError for a word that is none.
    """
    settings = {
        "kind": PolicyKind(kind),
        "model": model,
        "sampling": sampling,
        "group_size": group_size,
        "rollouts_per_step": rollouts_per_step,
        "max_staleness": max_staleness,
        "mode": Mode(mode),
        "history": History(history),
        "untrainable": Untrainable(untrainable),
    }
    start = {"id": id, "version": 0, "committed_version": 0, "fence": 0, "created_at": now}
    if not insert_or_ignore(conn, Policy, start | settings):
        row = lock_policy(conn, id)
        if row.kind != kind:
            raise Conflict(f"policy {id} is of kind {row.kind}: use another id for a {kind} policy")
        conn.execute(update(Policy).where(Policy.id == id).values(**settings))
    return get(conn, id)


def get(conn: Connection, policy_id: str) -> Row[Any]:
    """The policy's row. Raises NotFound."""
    row = conn.execute(select(Policy.__table__).where(Policy.id == policy_id)).one_or_none()
    if row is None:
        raise NotFound(f"no policy {policy_id}: create it with PUT /api/policies/{policy_id}")
    return row


def in_flight(conn: Connection, policy_id: str) -> int:
    """Training rollouts whose group is not settled yet."""
    return count_rollouts(conn, policy_id, (GroupState.OPEN,))


def unconsumed(conn: Connection, policy_id: str) -> int:
    """Training rollouts that are settled and wait for a step, or that a step works on."""
    return count_rollouts(conn, policy_id, (GroupState.SETTLED, GroupState.LEASED))


def outstanding(conn: Connection, policy_id: str, version: int) -> int:
    """Rollouts that the staleness bound counts: not consumed yet, or consumed by a step whose version is not out."""
    unpublished = (
        select(func.coalesce(func.sum(Group.size), 0))
        .join(TrainStep, TrainStep.id == Group.step_id)
        .where(
            Group.policy_id == policy_id,
            Group.purpose == Purpose.TRAIN,
            Group.state == GroupState.CONSUMED,
            TrainStep.void.is_(False),
            TrainStep.version > version,
        )
    )
    return count_rollouts(conn, policy_id, OUTSTANDING_STATES) + conn.execute(unpublished).scalar_one()


def count_rollouts(conn: Connection, policy_id: str, states: tuple[GroupState, ...]) -> int:
    """Rollouts of the policy's training groups in these states."""
    query = select(func.coalesce(func.sum(Group.size), 0)).where(
        Group.policy_id == policy_id, Group.purpose == Purpose.TRAIN, Group.state.in_(states)
    )
    return conn.execute(query).scalar_one()
