"""Rollouts: claimed by a runner, kept alive by its heartbeats, ended once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, Row, select, update

from spanlog import keys
from spanlog.errors import Conflict, NotFound, RolloutEnded
from spanlog.locks import lock_group_of, lock_groups, lock_rollout
from spanlog.models import Rollout
from spanlog.settle import expire, settle, settle_if_complete
from spanlog.states import ENDED_ROLLOUT_STATES, ROLLOUT_MOVES, GroupState, RolloutState
from spanlog.text import storable

HEARTBEAT_ERROR = "the runner's heartbeat was lost"


def get(conn: Connection, rollout_id: str) -> Row[Any]:
    """The rollout's row (its position is ``row._mapping["index"]``). Raises NotFound."""
    row = conn.execute(select(Rollout.__table__).where(Rollout.id == rollout_id)).one_or_none()
    if row is None:
        raise NotFound(f"no rollout {rollout_id}")
    return row


def claim(conn: Connection, id: str, runner: str, harness: str | None, now: float) -> str:
    """Start the rollout and return its agent key; the same runner may claim again and gets a new key.

    Earlier keys of the rollout stop working. Raises NotFound, RolloutEnded, Conflict (another runner has it).
    """
    rollout = lock_rollout(conn, id)
    refuse_ended(rollout)
    if rollout.state == RolloutState.RUNNING:
        refuse_other_runner(rollout, runner)
        keys.revoke_for_rollout(conn, id, now)
    values: dict[str, Any] = {
        "state": RolloutState.RUNNING,
        "runner": runner,
        "harness": harness,
        "heartbeat_at": now,
    }
    if rollout.started_at is None:
        values["started_at"] = now
    conn.execute(update(Rollout).where(Rollout.id == id).values(**values))
    return keys.mint(conn, keys.Scope.AGENT, rollout_id=id, now=now)


def heartbeat(conn: Connection, id: str, runner: str, now: float) -> None:
    """The runner is alive. Raises NotFound, RolloutEnded (stop the harness), Conflict (another runner has it)."""
    rollout = lock_rollout(conn, id)
    refuse_ended(rollout)
    if rollout.state != RolloutState.RUNNING:
        raise Conflict(f"rollout {id} is {rollout.state}: claim it first")
    refuse_other_runner(rollout, runner)
    conn.execute(update(Rollout).where(Rollout.id == id).values(heartbeat_at=now))


def finish(
    conn: Connection, id: str, state: str, error: str | None, info: dict[str, Any] | None, now: float
) -> Row[Any]:
    """End the rollout as ``succeeded`` or ``failed``; again with the same state changes nothing. Returns the row.

    Rewards that come with the end are added before it, in the same transaction. Without a reward a failed rollout's
    expires at once. Raises NotFound, RolloutEnded (it ended otherwise), Conflict (not started), ValueError.
    """
    target = RolloutState(state)
    if target not in (RolloutState.SUCCEEDED, RolloutState.FAILED):
        raise ValueError(f"a rollout finishes as succeeded or failed, not as {state}")
    group, rollout = lock_group_of(conn, id)
    if rollout.state == target:
        return rollout
    refuse_ended(rollout)
    if target not in ROLLOUT_MOVES[RolloutState(rollout.state)]:
        raise Conflict(f"rollout {id} is {rollout.state}: claim it before it can have {state}")
    values = {"state": target, "error": storable(error), "info": storable(info or {}), "ended_at": now}
    conn.execute(update(Rollout).where(Rollout.id == id).values(**values))
    if target == RolloutState.FAILED:
        expire(conn, [id])
    if group.state == GroupState.OPEN:
        settle(conn, group, now)
    return get(conn, id)


def abandon_lost(conn: Connection, timeout_s: float, now: float) -> list[str]:
    """Abandon running rollouts without a heartbeat for ``timeout_s``; returns their ids."""
    lost = select(Rollout.id, Rollout.group_id).where(
        Rollout.state == RolloutState.RUNNING, Rollout.heartbeat_at < now - timeout_s
    )
    candidates = conn.execute(lost).all()
    if not candidates:
        return []
    group_ids = sorted({row.group_id for row in candidates})
    lock_groups(conn, group_ids)
    again = lost.where(Rollout.group_id.in_(group_ids)).order_by(Rollout.id).with_for_update(key_share=True)
    ids = [row.id for row in conn.execute(again)]
    values = {"state": RolloutState.ABANDONED, "error": HEARTBEAT_ERROR, "ended_at": now}
    conn.execute(update(Rollout).where(Rollout.id.in_(ids)).values(**values))
    expire(conn, ids)
    for group_id in group_ids:
        settle_if_complete(conn, group_id, now)
    return ids


def refuse_ended(rollout: Row[Any]) -> None:
    """Raises RolloutEnded for a rollout that has ended."""
    if rollout.state in ENDED_ROLLOUT_STATES:
        raise RolloutEnded(f"rollout {rollout.id} has {rollout.state}: start another one")


def refuse_other_runner(rollout: Row[Any], runner: str) -> None:
    """Raises Conflict if another runner claimed it."""
    if rollout.runner != runner:
        raise Conflict(f"rollout {rollout.id} is claimed by runner {rollout.runner}: leave it to that one")
