"""Creating groups idempotently under the staleness bound, leasing them, and the lives of their rollouts."""

from __future__ import annotations

from typing import Any

import pytest

from spanlog import groups, keys, policies, rollouts
from spanlog.database import Database
from spanlog.errors import AdmissionRefused, Conflict, FenceLost, NotFound, RolloutEnded
from spanlog.groups import GroupView
from spanlog.models import Group, Rollout
from tests.spanlog.world import START, World


def create(world: World, **fields: Any) -> GroupView:
    values: dict[str, Any] = {
        "id": None,
        "policy_id": world.policy,
        "task": {"payload": {"n": 1.5, "text": "é\u2028"}},
        "size": 2,
        "purpose": "train",
        "deadline_at": START + 60,
        "now": START,
    }
    with world.database.begin() as conn:
        return groups.create_group(conn, **(values | fields))


def test_creating_again_returns_the_first(world: World) -> None:
    name = f"{world.policy}-group"
    first, again = create(world, id=name), create(world, id=name, deadline_at=START + 99)
    assert (first.created, again.created) == (True, False)
    assert again.rollouts == first.rollouts and again.deadline_at == START + 60
    assert [rollout.index for rollout in first.rollouts] == [0, 1]
    for other in (
        {"size": 3},
        {"purpose": "eval"},
        {"task": {"payload": {"n": 2}}},
        {"task": {"source": "x"}},
    ):
        with pytest.raises(Conflict):
            create(world, id=name, **other)
    assert world.column(Group, Group.id, Group.policy_id == world.policy) == [name]


def test_a_rollout_may_be_named_and_found_by_its_name(world: World) -> None:
    name = f"{world.policy}-rollout"
    first = create(world, size=1, rollout_ids=[name])
    assert create(world, size=1, rollout_ids=[name]).id == first.id
    with pytest.raises(Conflict):
        create(world, size=1, rollout_ids=[name], purpose="eval")
    with pytest.raises(Conflict):
        create(world, size=1, id=f"{world.policy}-other", rollout_ids=[name])


def test_one_task_for_many_groups(world: World) -> None:
    task = {"id": f"{world.policy}-task", "source": "test", "payload": {"n": 1}}
    assert create(world, task=task).task_id == create(world, task=task).task_id == task["id"]
    with pytest.raises(Conflict):
        create(world, task=task | {"payload": {"n": 2}})


def test_admission_holds_the_staleness_bound(database: Database) -> None:
    world = World(database, rollouts_per_step=4, max_staleness=1)
    settled = [world.settled_group() for _ in range(2)]
    create(world)
    create(world)
    with pytest.raises(AdmissionRefused) as caught:
        create(world)
    assert caught.value.retry_after > 0
    create(world, purpose="eval", size=50)
    with pytest.raises(Conflict, match="never fits"):
        create(world, size=9)
    fence = world.take_over()
    world.commit(fence, world.lease(2, fence), number=1, version=1)
    with pytest.raises(AdmissionRefused):
        create(world)
    publish(world, fence, 1)
    create(world)
    create(world)
    with pytest.raises(AdmissionRefused):
        create(world)
    assert all(world.group_state(group) == "consumed" for group in settled)


def publish(world: World, fence: int, version: int) -> None:
    from spanlog import steps

    with world.database.begin() as conn:
        steps.publish_version(conn, world.policy, fence, version - 1, version, "folder", None, world.now)


def test_leases_take_the_oldest_or_nothing(world: World) -> None:
    fence = world.take_over()
    ids = []
    for _ in range(3):
        ids.append(world.settled_group())
        world.now += 1
    world.group()
    assert world.lease(4, fence) == []
    assert world.lease(2, fence) == ids[:2]
    assert world.lease(2, fence) == []
    assert world.lease(1, fence) == ids[2:]
    with world.database.begin() as conn:
        assert groups.release(conn, group_ids=ids[1:], fence=fence) == 2
        assert groups.release(conn, group_ids=ids, fence=fence + 1) == 0
    assert world.lease(2, fence) == ids[1:]
    with pytest.raises(FenceLost):
        world.lease(1, fence - 1)


def test_a_lease_runs_out(world: World) -> None:
    fence = world.take_over()
    group = world.settled_group()
    assert world.lease(1, fence, ttl_s=10) == [group]
    world.now += 9
    assert world.lease(1, fence) == []
    world.now += 1
    assert world.lease(1, fence) == [group]


def test_eval_groups_are_never_leased(world: World) -> None:
    fence = world.take_over()
    group = world.group(size=1, purpose="eval")
    world.claim(group.rollouts[0].id)
    world.reward(group.rollouts[0].id, 1.0)
    world.finish(group.rollouts[0].id)
    assert world.group_state(group.id) == "settled"
    assert world.lease(1, fence) == []


def test_claiming_again_gives_a_new_key_and_ends_the_old(world: World) -> None:
    rollout = world.group().rollouts[0].id
    first, second = world.claim(rollout), world.claim(rollout)
    assert first != second and second.startswith("st-agent-")
    with world.database.begin() as conn:
        assert keys.find(conn, keys.hash_secret(first)) is None
        found = keys.find(conn, keys.hash_secret(second))
        assert found is not None
        assert (found.scope, found.rollout_id, found.rollout_state) == ("agent", rollout, "running")
    with pytest.raises(Conflict, match="claimed by runner runner"):
        world.claim(rollout, runner="another")
    with pytest.raises(NotFound):
        world.claim("nowhere")


def test_an_ended_rollout_never_moves_again(world: World) -> None:
    rollout = world.group().rollouts[0].id
    with pytest.raises(Conflict, match="claim it before"):
        world.finish(rollout)
    world.claim(rollout)
    world.finish(rollout)
    world.finish(rollout)
    with pytest.raises(RolloutEnded):
        world.finish(rollout, "failed")
    with pytest.raises(RolloutEnded):
        world.claim(rollout)
    with pytest.raises(RolloutEnded), world.database.begin() as conn:
        rollouts.heartbeat(conn, rollout, "runner", world.now)


def test_a_lost_heartbeat_abandons(world: World) -> None:
    group = world.group()
    for rollout in group.rollouts:
        world.claim(rollout.id)
    world.now += 20
    with world.database.begin() as conn:
        rollouts.heartbeat(conn, group.rollouts[0].id, "runner", world.now)
    world.now += 20
    with world.database.begin() as conn:
        assert group.rollouts[1].id in rollouts.abandon_lost(conn, 30.0, world.now)
    assert world.rollout(group.rollouts[0].id).state == "running"
    lost = world.rollout(group.rollouts[1].id)
    assert (lost.state, lost.reward_state, lost.reward) == ("abandoned", "expired", None)


def test_what_a_runner_keeps_may_hold_any_character(world: World) -> None:
    rollout = world.group().rollouts[0].id
    world.claim(rollout)
    with world.database.begin() as conn:
        rollouts.finish(conn, rollout, "failed", "exit\x00\udc80", {"output": "\x00\ud800"}, world.now)
    row = world.rollout(rollout)
    assert row.error == "exit��" and row.info == {"output": "��"}


def test_configured_keys_are_stored_once(database: Database) -> None:
    with database.begin() as conn:
        assert keys.mint(conn, "admin", secret="configured") == "configured"
        assert keys.mint(conn, "admin", secret="configured") == "configured"
        with pytest.raises(Conflict, match="two different secrets"):
            keys.mint(conn, "runner", secret="configured")
        with pytest.raises(ValueError):
            keys.mint(conn, "root")


def test_a_policy_keeps_its_kind(world: World) -> None:
    settings: dict[str, Any] = {"id": world.policy, "model": "tiny", "sampling": {}, "group_size": 5}
    settings |= {"rollouts_per_step": 0, "max_staleness": 0, "now": START}
    with world.database.begin() as conn:
        assert policies.put(conn, kind="train", **settings).group_size == 5
        with pytest.raises(Conflict):
            policies.put(conn, kind="frozen", **settings)
    assert create(world, size=None).size == 5


def test_groups_are_listed_in_pages(world: World) -> None:
    made = sorted(create(world).id for _ in range(3))
    with world.database.read() as conn:
        page = groups.list_groups(conn, policy_id=world.policy, limit=2)
        rest = groups.list_groups(
            conn, policy_id=world.policy, state="open", purpose="train", after=page[-1].id
        )
    assert [group.id for group in page + rest] == made
    assert all(len(group.rollouts) == 2 for group in page)
    assert len(world.column(Rollout, Rollout.id, Rollout.policy_id == world.policy)) == 6
