"""Train steps: a step's row and its groups' consumption are one transaction, and that commit is the truth [I6].

A trainer takes a policy over and gets a fence; everything it commits later is checked against it, so that one that was
paused, cut off or thought dead cannot consume or publish any more. Taking over goes back to the last checkpoint: the
steps after it are void and their groups may be leased again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Row, Select, delete, func, insert, select, update

from spanlog.errors import Conflict, FenceLost, LeaseLost
from spanlog.groups import give_back
from spanlog.ids import new_id
from spanlog.locks import lock_groups, lock_policy
from spanlog.models import Group, Metric, Policy, PolicyVersion, TrainSample, TrainStep
from spanlog.states import GroupState


@dataclass(frozen=True)
class SampleRow:
    """What became of a rollout: one training row."""

    rollout_id: str
    span_ids: list[str]
    """The spans whose completions are targets in this row."""
    builder: str
    config_hash: str
    token_count: int
    target_count: int
    advantage: float
    oldest_version: int | None


@dataclass(frozen=True)
class StepCommit:
    """All that a step writes, at once. Write and rename the checkpoint folder before."""

    policy_id: str
    fence: int
    number: int
    """Counts the policy's steps from 1; one more than that of the last step that is not void."""
    stage: str
    version: int
    """The version that publishing this step will make: see ``next_version``."""
    checkpoint_path: str | None
    group_ids: list[str]
    """Groups that it consumes, leased by this fence; none for a stage that leases none."""
    samples: list[SampleRow]
    metrics: dict[str, float]
    started_at: float
    committed_at: float
    id: str = field(default_factory=lambda: new_id("stp"))


def take_over(conn: Connection, policy_id: str) -> int:
    """Become the policy's trainer; returns the fence. Raises NotFound.

    Leases of older fences end, steps after the last checkpoint are void, and their groups are settled again.
    ``committed_version`` goes back to that of the last step that holds, or to the published one if that is newer.
    """
    policy = lock_policy(conn, policy_id)
    fence = policy.fence + 1
    void_steps(conn, policy_id)
    held = select(Group.id).where(Group.policy_id == policy_id, Group.state == GroupState.LEASED)
    return_groups(conn, list(conn.execute(held).scalars()))
    last = last_step(conn, policy_id)
    committed = max(policy.version, last.version if last is not None else 0)
    conn.execute(
        update(Policy).where(Policy.id == policy_id).values(fence=fence, committed_version=committed)
    )
    return fence


def void_steps(conn: Connection, policy_id: str) -> None:
    """Void the steps after the last checkpoint, give their groups back, and drop their points from the plots."""
    last_kept = last_kept_step(conn, policy_id)
    kept = last_kept.number if last_kept is not None else 0
    after = select(TrainStep.id).where(
        TrainStep.policy_id == policy_id, TrainStep.void.is_(False), TrainStep.number > kept
    )
    step_ids = list(conn.execute(after).scalars())
    if not step_ids:
        return
    consumed = select(Group.id).where(Group.step_id.in_(step_ids), Group.state == GroupState.CONSUMED)
    return_groups(conn, list(conn.execute(consumed).scalars()))
    conn.execute(update(TrainStep).where(TrainStep.id.in_(step_ids)).values(void=True))
    conn.execute(delete(Metric).where(Metric.policy_id == policy_id, Metric.step > kept))


def return_groups(conn: Connection, group_ids: list[str]) -> None:
    """Make groups leasable again; the policy's row is locked."""
    if group_ids:
        lock_groups(conn, group_ids)
        give_back(conn, group_ids)


def next_version(conn: Connection, policy_id: str) -> int:
    """The version that the next publish makes: above every one ever published, staged, or meant by a step.

    A trainer that crashed while publishing may have left engines with the label of a step that is void now, or has yet
    to be published by who resumes; to use its number again would give two sets of weights one name [I2]. So numbers may
    be skipped, and are never reused.
    """
    staged = select(func.max(PolicyVersion.version)).where(PolicyVersion.policy_id == policy_id)
    meant = select(func.max(TrainStep.version)).where(TrainStep.policy_id == policy_id)
    policy = lock_policy(conn, policy_id)
    return 1 + max(
        policy.version, conn.execute(staged).scalar_one() or 0, conn.execute(meant).scalar_one() or 0
    )


def last_step(conn: Connection, policy_id: str) -> Row[Any] | None:
    """The newest step that is not void: after ``take_over``, the one to resume from."""
    return conn.execute(_newest_first(policy_id)).one_or_none()


def last_kept_step(conn: Connection, policy_id: str) -> Row[Any] | None:
    """The newest step that is not void and has a checkpoint."""
    return conn.execute(_newest_first(policy_id).where(TrainStep.checkpoint_path.is_not(None))).one_or_none()


def _newest_first(policy_id: str) -> Select[Any]:
    return (
        select(TrainStep.__table__)
        .where(TrainStep.policy_id == policy_id, TrainStep.void.is_(False))
        .order_by(TrainStep.number.desc())
        .limit(1)
    )


def commit_step(conn: Connection, step: StepCommit) -> str:
    """Write the step and consume its groups, all or nothing; returns the step's id [I6].

    Raises FenceLost (another trainer took over), LeaseLost (a group is not leased by this fence), Conflict (number or
    version out of order).
    """
    policy = lock_policy(conn, step.policy_id)
    check_fence(policy, step.fence)
    check_order(conn, policy, step)
    check_leases(conn, step)
    conn.execute(insert(TrainStep).values(**step_row(step)))
    values = {"state": GroupState.CONSUMED, "step_id": step.id, "lease_expires_at": None}
    conn.execute(update(Group).where(Group.id.in_(step.group_ids)).values(**values))
    add_samples(conn, step)
    add_metrics(conn, step.policy_id, step.number, step.metrics, step.committed_at)
    committed = max(policy.committed_version, step.version)
    conn.execute(update(Policy).where(Policy.id == step.policy_id).values(committed_version=committed))
    return step.id


def step_row(step: StepCommit) -> dict[str, Any]:
    """The row of ``train_steps``."""
    return {
        "id": step.id,
        "policy_id": step.policy_id,
        "number": step.number,
        "stage": step.stage,
        "fence": step.fence,
        "version": step.version,
        "checkpoint_path": step.checkpoint_path,
        "void": False,
        "metrics": step.metrics,
        "started_at": step.started_at,
        "committed_at": step.committed_at,
    }


def check_fence(policy: Row[Any], fence: int) -> None:
    """Raises FenceLost unless this trainer still holds the policy."""
    if policy.fence != fence:
        raise FenceLost(f"another trainer took policy {policy.id} over (fence {policy.fence}): stop this one")


def check_order(conn: Connection, policy: Row[Any], step: StepCommit) -> None:
    """Raises Conflict if the step's number or version is not the next."""
    last = last_step(conn, policy.id)
    number = 1 if last is None else last.number + 1
    if step.number != number:
        raise Conflict(f"step {step.number} of policy {policy.id} is out of order: the next is {number}")
    published = select(PolicyVersion.version).where(
        PolicyVersion.policy_id == policy.id, PolicyVersion.version == step.version
    )
    void = select(TrainStep.id).where(
        TrainStep.policy_id == policy.id, TrainStep.version == step.version, TrainStep.void.is_(True)
    )
    used = conn.execute(published.limit(1)).first() or conn.execute(void.limit(1)).first()
    if step.version <= policy.version or used:
        raise Conflict(
            f"version {step.version} of policy {policy.id} was used before: take steps.next_version"
        )


def check_leases(conn: Connection, step: StepCommit) -> None:
    """Lock the step's groups. Raises LeaseLost unless each is leased by this fence."""
    held = {
        group.id
        for group in lock_groups(conn, step.group_ids)
        if group.state == GroupState.LEASED
        and group.lease_fence == step.fence
        and group.policy_id == step.policy_id
    }
    lost = sorted(set(step.group_ids) - held)
    if lost:
        raise LeaseLost(
            f"group {lost[0]} is no longer leased to this trainer ({len(lost)} lost): lease again"
        )


def add_samples(conn: Connection, step: StepCommit) -> None:
    """Insert the step's training rows."""
    rows = [
        {
            "id": new_id("smp"),
            "step_id": step.id,
            "rollout_id": sample.rollout_id,
            "span_ids": sample.span_ids,
            "builder": sample.builder,
            "config_hash": sample.config_hash,
            "token_count": sample.token_count,
            "target_count": sample.target_count,
            "advantage": sample.advantage,
            "oldest_version": sample.oldest_version,
        }
        for sample in step.samples
    ]
    if rows:
        conn.execute(insert(TrainSample), rows)


def add_metrics(conn: Connection, policy_id: str, step: int, metrics: dict[str, float], at: float) -> None:
    """Add points to the plots."""
    rows = [
        {"policy_id": policy_id, "step": step, "name": name, "value": value, "at": at}
        for name, value in metrics.items()
    ]
    if rows:
        conn.execute(insert(Metric), rows)


def stage_version(
    conn: Connection,
    policy_id: str,
    fence: int,
    version: int,
    path: str | None,
    step_id: str | None,
    now: float,
) -> None:
    """Record weights that are about to be loaded, before any engine is touched. Raises FenceLost, Conflict (used)."""
    check_fence(lock_policy(conn, policy_id), fence)
    found = read_version(conn, policy_id, version)
    other = found is not None and (found.step_id != step_id or (step_id is None and found.path != path))
    if found is not None and (found.state == "published" or other):
        raise Conflict(f"version {version} of policy {policy_id} was used before: take steps.next_version")
    put_version(conn, policy_id, version, path=path, step_id=step_id, state="staged", created_at=now)


def fail_version(conn: Connection, policy_id: str, fence: int, version: int) -> None:
    """No engine loaded it; the number is spent. Raises FenceLost."""
    check_fence(lock_policy(conn, policy_id), fence)
    query = update(PolicyVersion).where(
        PolicyVersion.policy_id == policy_id, PolicyVersion.version == version
    )
    conn.execute(query.where(PolicyVersion.state == "staged").values(state="failed"))


def publish_version(
    conn: Connection,
    policy_id: str,
    fence: int,
    expected: int,
    new: int,
    path: str | None,
    step_id: str | None,
    now: float,
) -> None:
    """Compare and swap the policy's version from ``expected`` to ``new``; the version's row becomes published.

    Raises FenceLost, Conflict (the policy is not at ``expected``, or ``new`` is not above it).
    """
    policy = lock_policy(conn, policy_id)
    check_fence(policy, fence)
    if policy.version != expected or new <= expected:
        raise Conflict(
            f"policy {policy_id} is at version {policy.version}: cannot go from {expected} to {new}"
        )
    committed = max(policy.committed_version, new)
    conn.execute(
        update(Policy).where(Policy.id == policy_id).values(version=new, committed_version=committed)
    )
    found = read_version(conn, policy_id, new)
    created_at = now if found is None else found.created_at
    put_version(
        conn,
        policy_id,
        new,
        path=path,
        step_id=step_id,
        state="published",
        created_at=created_at,
        published_at=now,
    )


def read_version(conn: Connection, policy_id: str, version: int) -> Row[Any] | None:
    """The version's row, or null."""
    query = select(PolicyVersion.__table__).where(
        PolicyVersion.policy_id == policy_id, PolicyVersion.version == version
    )
    return conn.execute(query).one_or_none()


def put_version(conn: Connection, policy_id: str, version: int, **values: Any) -> None:
    """Insert or overwrite the version's row; the policy's row is locked."""
    key = (PolicyVersion.policy_id == policy_id, PolicyVersion.version == version)
    if conn.execute(update(PolicyVersion).where(*key).values(**values)).rowcount == 0:
        conn.execute(insert(PolicyVersion).values(policy_id=policy_id, version=version, **values))


def list_steps(
    conn: Connection, policy_id: str | None = None, after: int = 0, limit: int = 1000
) -> list[Row[Any]]:
    """Steps with a number above ``after``, void ones included, in order of number and time."""
    query = select(TrainStep.__table__).where(TrainStep.number > after)
    if policy_id is not None:
        query = query.where(TrainStep.policy_id == policy_id)
    return list(
        conn.execute(
            query.order_by(TrainStep.policy_id, TrainStep.number, TrainStep.committed_at).limit(limit)
        )
    )
