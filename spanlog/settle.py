"""When a group is done. A missing reward is never a zero [I4]: it stays null, and its state says ``expired``.

A group settles when every rollout has ended and no reward is pending, or at its deadline. What is pending at the
deadline expires, and what still runs then is abandoned. A rollout that failed or was abandoned without a reward expires
at once, so that a crash does not hold its siblings up. A training group without a single reward is void.
"""

from __future__ import annotations

from sqlalchemy import Connection, Row, select, update

from spanlog.locks import lock_group
from spanlog.models import Group, Rollout
from spanlog.states import ENDED_ROLLOUT_STATES, GroupState, Purpose, RewardState, RolloutState

DEADLINE_ERROR = "the group's deadline passed before the rollout ended"


def outcome(purpose: str, rollouts: list[tuple[str, str, float | None]]) -> GroupState:
    """The state that the group's rollouts, each (state, reward state, reward), call for. Pure."""
    if any(
        state not in ENDED_ROLLOUT_STATES or reward_state == RewardState.PENDING
        for state, reward_state, _ in rollouts
    ):
        return GroupState.OPEN
    if purpose == Purpose.TRAIN and all(reward is None for _, _, reward in rollouts):
        return GroupState.VOID
    return GroupState.SETTLED


def settle_if_complete(conn: Connection, group_id: str, now: float) -> bool:
    """Settle (or void) the group if it is open and complete; true if it did. Raises NotFound."""
    group = lock_group(conn, group_id)
    return group.state == GroupState.OPEN and settle(conn, group, now)


def settle(conn: Connection, group: Row, now: float) -> bool:
    """``settle_if_complete`` for an open group that the caller has locked."""
    query = select(Rollout.state, Rollout.reward_state, Rollout.reward).where(Rollout.group_id == group.id)
    state = outcome(group.purpose, [(row.state, row.reward_state, row.reward) for row in conn.execute(query)])
    if state == GroupState.OPEN:
        return False
    conn.execute(update(Group).where(Group.id == group.id).values(state=state, settled_at=now))
    return True


def settle_due(conn: Connection, policy_id: str | None, now: float) -> list[str]:
    """Apply the deadline rule to open groups (of one policy, or of all); returns the ids of those it settled."""
    query = (
        select(Group.__table__)
        .where(Group.state == GroupState.OPEN, Group.deadline_at <= now)
        .order_by(Group.id)
    )
    if policy_id is not None:
        query = query.where(Group.policy_id == policy_id)
    groups = conn.execute(query.with_for_update(key_share=True, skip_locked=True)).all()
    if not groups:
        return []
    end_overdue(conn, [group.id for group in groups], now)
    return [group.id for group in groups if settle(conn, group, now)]


def end_overdue(conn: Connection, group_ids: list[str], now: float) -> None:
    """Abandon what still runs in these groups and expire what is pending; rewards stay null [I4]."""
    members = (
        select(Rollout.id)
        .where(Rollout.group_id.in_(group_ids))
        .order_by(Rollout.id)
        .with_for_update(key_share=True)
    )
    ids = list(conn.execute(members).scalars())
    conn.execute(
        update(Rollout)
        .where(Rollout.id.in_(ids), Rollout.state.not_in(ENDED_ROLLOUT_STATES))
        .values(state=RolloutState.ABANDONED, error=DEADLINE_ERROR, ended_at=now)
    )
    expire(conn, ids)


def expire(conn: Connection, rollout_ids: list[str]) -> None:
    """Pending rewards of these rollouts will not come: expired, and still null [I4]."""
    conn.execute(
        update(Rollout)
        .where(Rollout.id.in_(rollout_ids), Rollout.reward_state == RewardState.PENDING)
        .values(reward_state=RewardState.EXPIRED)
    )
