"""The one order in which rows are locked on PostgreSQL, so that no two transactions wait for each other.

Policy row, then group rows by id, then rollout rows by id, then engine rows by id, then blobs by hash. ``FOR NO KEY
UPDATE`` (``key_share=True``) leaves foreign-key checks of other transactions alone. SQLite has one writer, holds no row
locks and ignores the clause.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import Connection, Row, select

from spanlog.errors import NotFound
from spanlog.models import Engine, Group, Policy, Rollout


def lock_policy(conn: Connection, policy_id: str) -> Row[Any]:
    """The policy's row, locked. Raises NotFound."""
    query = select(Policy.__table__).where(Policy.id == policy_id).with_for_update(key_share=True)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"no policy {policy_id}: create it with PUT /api/policies/{policy_id}")
    return row


def lock_group(conn: Connection, group_id: str) -> Row[Any]:
    """The group's row, locked. Raises NotFound."""
    query = select(Group.__table__).where(Group.id == group_id).with_for_update(key_share=True)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"no group {group_id}")
    return row


def lock_groups(conn: Connection, group_ids: Collection[str]) -> Sequence[Row[Any]]:
    """The groups' rows in order of id, locked; those that do not exist are left out."""
    query = select(Group.__table__).where(Group.id.in_(group_ids)).order_by(Group.id)
    return conn.execute(query.with_for_update(key_share=True)).all()


def lock_rollout(conn: Connection, rollout_id: str) -> Row[Any]:
    """The rollout's row, locked. Raises NotFound."""
    query = select(Rollout.__table__).where(Rollout.id == rollout_id).with_for_update(key_share=True)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"no rollout {rollout_id}")
    return row


def lock_group_of(conn: Connection, rollout_id: str) -> tuple[Row[Any], Row[Any]]:
    """The rollout's group and the rollout, locked in this order. Raises NotFound."""
    group_id = conn.execute(select(Rollout.group_id).where(Rollout.id == rollout_id)).scalar_one_or_none()
    if group_id is None:
        raise NotFound(f"no rollout {rollout_id}")
    return lock_group(conn, group_id), lock_rollout(conn, rollout_id)


def lock_engine(conn: Connection, engine_id: str) -> Row[Any]:
    """The engine's row, locked. Raises NotFound."""
    query = select(Engine.__table__).where(Engine.id == engine_id).with_for_update(key_share=True)
    row = conn.execute(query).one_or_none()
    if row is None:
        raise NotFound(f"no engine {engine_id}: register it with PUT /api/engines/{engine_id}")
    return row


def lock_engines(conn: Connection, engine_ids: Collection[str]) -> None:
    """Lock the engines' rows in order of id; those that do not exist are left out."""
    query = select(Engine.id).where(Engine.id.in_(engine_ids)).order_by(Engine.id)
    conn.execute(query.with_for_update(key_share=True))
