"""Groups: creating them under the staleness bound, leasing them to a trainer.

Creation is idempotent by the caller's id. A lease is held by a fence (see ``spanlog.steps``): it ends by release, by
time, or by another trainer's taking over [I6]. When a group settles is in ``spanlog.settle``.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, and_, insert, or_, select, update

from spanlog import rewards
from spanlog.errors import AdmissionRefused, Conflict, FenceLost, NotFound
from spanlog.ids import new_id
from spanlog.locks import lock_groups, lock_policy
from spanlog.models import Group, Rollout, Task
from spanlog.policies import outstanding
from spanlog.settle import settle_due, settle_if_complete
from spanlog.states import GroupState, Purpose, RewardState, RolloutState
from spanlog.upsert import insert_or_ignore

__all__ = [
    "RETRY_AFTER_S",
    "GroupView",
    "RolloutView",
    "create_group",
    "get",
    "lease",
    "list_groups",
    "release",
    "settle_due",
    "settle_if_complete",
]

RETRY_AFTER_S = 2.0
"""What a refused caller is told to wait: a few rollouts end in that time."""


@dataclass(frozen=True)
class RolloutView:
    """A rollout as its group shows it."""

    id: str
    index: int
    state: str
    reward_state: str
    reward: float | None


@dataclass(frozen=True)
class GroupView:
    """A group with its rollouts in order of index."""

    id: str
    policy_id: str
    task_id: str
    purpose: str
    size: int
    state: str
    deadline_at: float
    created_at: float
    settled_at: float | None
    step_id: str | None
    rollouts: list[RolloutView]
    created: bool = False
    """True if this call made it; false if it was there already."""


def create_group(
    conn: Connection,
    *,
    id: str | None,
    policy_id: str,
    task: dict[str, Any],
    size: int | None,
    purpose: str,
    deadline_at: float,
    now: float,
    rollout_ids: Sequence[str] | None = None,
) -> GroupView:
    """Create a group and its queued rollouts, or return the one that an earlier call with this id made.

    ``task``: ``{id?, source?, payload}``. ``size``: null takes the policy's. ``rollout_ids``: ids for the rollouts (a
    caller of a single rollout names that one); with ``id`` null an existing rollout names its group. ``deadline_at`` is
    not compared with an existing group's: a retry computes another. Raises NotFound (policy), Conflict (same id,
    another body, or a group larger than the bound), AdmissionRefused (training groups only), ValueError.
    """
    policy = lock_policy(conn, policy_id)
    size = int(size or policy.group_size)
    purpose = Purpose(purpose)
    if rollout_ids is not None and len(rollout_ids) != size:
        raise ValueError(f"{len(rollout_ids)} rollout ids for {size} rollouts")
    if id is None and rollout_ids:
        id = conn.execute(select(Rollout.group_id).where(Rollout.id == rollout_ids[0])).scalar_one_or_none()
    existing = None if id is None else find(conn, id)
    if existing is not None:
        check_same(conn, existing, policy_id, task, size, purpose, rollout_ids)
        return existing
    if purpose == Purpose.TRAIN:
        admit(conn, policy, size)
    group_id = id or new_id("grp")
    task_id = put_task(conn, task, now)
    row = {
        "id": group_id,
        "policy_id": policy_id,
        "task_id": task_id,
        "purpose": purpose,
        "size": size,
        "state": GroupState.OPEN,
        "deadline_at": deadline_at,
        "created_at": now,
    }
    if not insert_or_ignore(conn, Group, row):
        raise Conflict(f"group {group_id} was just made under another policy: use another id")
    add_rollouts(conn, row, rollout_ids, now)
    return read_view(conn, group_id, created=True)


def add_rollouts(conn: Connection, group: dict[str, Any], ids: Sequence[str] | None, now: float) -> None:
    """Insert the group's queued rollouts. Raises Conflict if one of the ids is taken."""
    ids = ids or [new_id("rol") for _ in range(group["size"])]
    taken = conn.execute(select(Rollout.id).where(Rollout.id.in_(ids))).scalars().all()
    if taken:
        raise Conflict(f"rollout {taken[0]} exists in another group: use another id")
    rows = [
        {
            "id": rollout_id,
            "group_id": group["id"],
            "policy_id": group["policy_id"],
            "purpose": group["purpose"],
            "index": index,
            "state": RolloutState.QUEUED,
            "reward_state": RewardState.PENDING,
            "info": {},
            "created_at": now,
        }
        for index, rollout_id in enumerate(ids)
    ]
    conn.execute(insert(Rollout), rows)


def put_task(conn: Connection, task: dict[str, Any], now: float) -> str:
    """Store the task, or find the same one; returns its id. Raises Conflict if its id names another problem."""
    row = {
        "id": task.get("id") or new_id("tsk"),
        "source": task.get("source"),
        "payload": task.get("payload") or {},
        "created_at": now,
    }
    if not insert_or_ignore(conn, Task, row):
        check_same_task(conn, row["id"], task)
    return row["id"]


def check_same_task(conn: Connection, task_id: str, task: dict[str, Any]) -> None:
    """Raises Conflict if the stored task is not the given one. Where it came from (file and line) may have moved."""
    stored = conn.execute(select(Task.id, Task.payload).where(Task.id == task_id)).one()
    same_id = task.get("id") is None or task["id"] == stored.id
    if not same_id or stored.payload != (task.get("payload") or {}):
        raise Conflict(f"task {task_id} exists with another content: use another id")


def check_same(
    conn: Connection,
    group: GroupView,
    policy_id: str,
    task: dict[str, Any],
    size: int,
    purpose: str,
    rollout_ids: Sequence[str] | None,
) -> None:
    """Raises Conflict if the existing group was made from another body."""
    if (group.policy_id, group.size, group.purpose) != (policy_id, size, purpose):
        raise Conflict(f"group {group.id} exists with another policy, size or purpose: use another id")
    if rollout_ids is not None and [rollout.id for rollout in group.rollouts] != list(rollout_ids):
        raise Conflict(f"group {group.id} exists with other rollouts: use another id")
    check_same_task(conn, group.task_id, task)


def admit(conn: Connection, policy: Row[Any], size: int) -> None:
    """The staleness bound; the policy's row is locked, so that two callers cannot both take the last place."""
    if policy.rollouts_per_step == 0:
        return
    bound = (policy.max_staleness + 1) * policy.rollouts_per_step
    if size > bound:
        raise Conflict(
            f"a group of {size} never fits into policy {policy.id}'s bound of {bound} rollouts: "
            "make it smaller, or raise rollouts_per_step or max_staleness"
        )
    held = outstanding(conn, policy.id, policy.version)
    if held + size > bound:
        raise AdmissionRefused(
            f"{held} rollouts of policy {policy.id} wait or run, {bound} may: ask again in {RETRY_AFTER_S:g} s",
            RETRY_AFTER_S,
        )


def lease(
    conn: Connection, *, policy_id: str, count: int, owner: str, fence: int, ttl_s: float, now: float
) -> list[str]:
    """Lease the ``count`` oldest settled training groups, or none at all; returns their ids, oldest first.

    Groups whose lease has run out, or belongs to an older fence, count as settled. Raises FenceLost, NotFound.
    """
    policy = lock_policy(conn, policy_id)
    if policy.fence != fence:
        raise FenceLost(f"another trainer took policy {policy_id} over: stop this one")
    stale = and_(
        Group.state == GroupState.LEASED, or_(Group.lease_expires_at <= now, Group.lease_fence < fence)
    )
    query = (
        select(Group.id)
        .where(
            Group.policy_id == policy_id,
            Group.purpose == Purpose.TRAIN,
            or_(Group.state == GroupState.SETTLED, stale),
        )
        .order_by(Group.created_at, Group.id)
        .limit(count)
    )
    ids = list(conn.execute(query.with_for_update(key_share=True, skip_locked=True)).scalars())
    if len(ids) < count:
        return []
    values = {
        "state": GroupState.LEASED,
        "lease_owner": owner,
        "lease_fence": fence,
        "lease_expires_at": now + ttl_s,
    }
    conn.execute(update(Group).where(Group.id.in_(ids)).values(**values))
    rewards.apply_held(conn, ids)  # those of a lease that ran out
    return ids


def release(conn: Connection, *, group_ids: Collection[str], fence: int) -> int:
    """Give leased groups back unconsumed; those that this fence does not hold are left alone. Returns how many."""
    mine = [
        group.id
        for group in lock_groups(conn, group_ids)
        if group.state == GroupState.LEASED and group.lease_fence == fence
    ]
    give_back(conn, mine)
    return len(mine)


def give_back(conn: Connection, group_ids: Collection[str]) -> None:
    """Make locked groups leasable again."""
    values = {
        "state": GroupState.SETTLED,
        "lease_owner": None,
        "lease_fence": None,
        "lease_expires_at": None,
        "step_id": None,
    }
    conn.execute(update(Group).where(Group.id.in_(group_ids)).values(**values))
    rewards.apply_held(conn, group_ids)


def get(conn: Connection, group_id: str) -> GroupView:
    """The group and its rollouts. Raises NotFound."""
    return read_view(conn, group_id)


def find(conn: Connection, group_id: str) -> GroupView | None:
    """The group and its rollouts, or null."""
    try:
        return read_view(conn, group_id)
    except NotFound:
        return None


def list_groups(
    conn: Connection,
    *,
    policy_id: str | None = None,
    purpose: str | None = None,
    state: str | None = None,
    limit: int = 100,
    after: str | None = None,
) -> list[GroupView]:
    """Groups in order of id, with their rollouts; ``after``: the last id of the page before."""
    query = select(Group.__table__).order_by(Group.id).limit(limit)
    for column, value in ((Group.policy_id, policy_id), (Group.purpose, purpose), (Group.state, state)):
        if value is not None:
            query = query.where(column == value)
    if after is not None:
        query = query.where(Group.id > after)
    return views(conn, conn.execute(query).all())


def read_view(conn: Connection, group_id: str, created: bool = False) -> GroupView:
    """One group. Raises NotFound."""
    found = views(conn, conn.execute(select(Group.__table__).where(Group.id == group_id)).all(), created)
    if not found:
        raise NotFound(f"no group {group_id}")
    return found[0]


def views(conn: Connection, groups: Sequence[Row[Any]], created: bool = False) -> list[GroupView]:
    """Rows of ``groups`` with their rollouts, by one more query."""
    members: dict[str, list[RolloutView]] = {group.id: [] for group in groups}
    query = (
        select(
            Rollout.group_id,
            Rollout.id,
            Rollout.index.label("position"),
            Rollout.state,
            Rollout.reward_state,
            Rollout.reward,
        )
        .where(Rollout.group_id.in_(members))
        .order_by(Rollout.index)
    )
    for row in conn.execute(query):
        members[row.group_id].append(
            RolloutView(row.id, row.position, row.state, row.reward_state, row.reward)
        )
    return [
        GroupView(
            id=group.id,
            policy_id=group.policy_id,
            task_id=group.task_id,
            purpose=group.purpose,
            size=group.size,
            state=group.state,
            deadline_at=group.deadline_at,
            created_at=group.created_at,
            settled_at=group.settled_at,
            step_id=group.step_id,
            rollouts=members[group.id],
            created=created,
        )
        for group in groups
    ]
