"""Rewards are events, only ever added: per turn, at the end, hours later, revised.

The event named ``reward`` without a span settles the rollout's reward. Once its group is leased or consumed, or void, an
event is recorded and changes nothing, unless the group comes back from its lease or its step. A missing reward is not
zero [I4].
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, Row, select, update

from spanlog.errors import Conflict, NotFound, RewardNotFinite
from spanlog.ids import new_id
from spanlog.locks import lock_group_of, lock_rollout
from spanlog.models import Reward, Rollout, Span
from spanlog.settle import settle
from spanlog.states import GroupState, RewardState
from spanlog.upsert import insert_or_ignore

TRAINING_NAME = "reward"
CLOSED_GROUP_STATES = (GroupState.LEASED, GroupState.CONSUMED, GroupState.VOID)


def add(
    conn: Connection,
    *,
    rollout_id: str,
    span_id: str | None,
    name: str,
    value: float,
    source: str,
    idempotency_key: str | None,
    now: float,
) -> Row[Any]:
    """Record a reward; the same idempotency key again returns the first row. Null key: never the same.

    Raises RewardNotFinite, NotFound (rollout, or span within it), Conflict (the key was used for something else).
    """
    if not math.isfinite(value):
        raise RewardNotFinite(f"a reward must be a finite number, not {value}: leave it out if there is none")
    group, rollout = lock_group_of(conn, rollout_id)
    check_span(conn, rollout_id, span_id)
    closed = group.state in CLOSED_GROUP_STATES
    row = {
        "id": new_id("rwd"),
        "rollout_id": rollout_id,
        "span_id": span_id,
        "name": name,
        "value": float(value),
        "source": source,
        "idempotency_key": idempotency_key or new_id("rwd"),
        "after_consumption": closed,
        "created_at": now,
    }
    if not insert_or_ignore(conn, Reward, row):
        return same_event(conn, row)
    if name == TRAINING_NAME and span_id is None and not closed:
        set_reward(conn, rollout, row["value"])
        if group.state == GroupState.OPEN:
            settle(conn, group, now)
    return read(conn, row["id"])


def set_reward(conn: Connection, rollout: Row[Any], value: float) -> None:
    """The first reward is final; a later one revises it. One that comes after its expiry is the first."""
    first = rollout.reward_state in (RewardState.PENDING, RewardState.EXPIRED)
    state = RewardState.FINAL if first else RewardState.REVISED
    conn.execute(update(Rollout).where(Rollout.id == rollout.id).values(reward=value, reward_state=state))


def apply_held(conn: Connection, group_ids: Collection[str]) -> None:
    """Groups come back to be leased again: what was rewarded meanwhile counts after all. The groups are locked."""
    query = (
        select(Reward.id, Reward.rollout_id, Reward.value)
        .join(Rollout, Rollout.id == Reward.rollout_id)
        .where(
            Rollout.group_id.in_(group_ids),
            Reward.after_consumption,
            Reward.name == TRAINING_NAME,
            Reward.span_id.is_(None),
        )
        .order_by(Reward.rollout_id, Reward.created_at, Reward.id)
    )
    for event in conn.execute(query).all():
        set_reward(conn, lock_rollout(conn, event.rollout_id), event.value)
        conn.execute(update(Reward).where(Reward.id == event.id).values(after_consumption=False))


def same_event(conn: Connection, row: dict[str, Any]) -> Row[Any]:
    """The event that used this idempotency key. Raises Conflict if it says something else."""
    query = select(Reward.__table__).where(Reward.idempotency_key == row["idempotency_key"])
    found = conn.execute(query).one()
    for field in ("rollout_id", "span_id", "name", "value"):
        if found._mapping[field] != row[field]:
            raise Conflict(
                f"idempotency key {row['idempotency_key']} was used with another {field}: use a new key"
            )
    return found


def check_span(conn: Connection, rollout_id: str, span_id: str | None) -> None:
    """Raises NotFound unless the span is of this rollout."""
    if span_id is None:
        return
    owner = conn.execute(select(Span.rollout_id).where(Span.id == span_id)).scalar_one_or_none()
    if owner != rollout_id:
        raise NotFound(f"rollout {rollout_id} has no span {span_id}")


def read(conn: Connection, reward_id: str) -> Row[Any]:
    """The event's row."""
    return conn.execute(select(Reward.__table__).where(Reward.id == reward_id)).one()


def list_for_rollout(conn: Connection, rollout_id: str) -> list[Row[Any]]:
    """The rollout's events, oldest first."""
    query = (
        select(Reward.__table__).where(Reward.rollout_id == rollout_id).order_by(Reward.created_at, Reward.id)
    )
    return list(conn.execute(query))
