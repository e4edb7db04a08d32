"""[I4] A missing reward is not zero, whatever comes in whatever order; and a group settles when the rule says so."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from spanlog import groups, rollouts, settle
from spanlog.database import Database
from spanlog.errors import Conflict, NotFound, RewardNotFinite, RolloutEnded
from spanlog.models import Reward, Rollout
from tests.spanlog.world import World

DEADLINE_S = 100.0
HEARTBEAT_S = 60.0


def test_the_first_is_final_and_a_later_one_revises(world: World) -> None:
    rollout = world.group().rollouts[0].id
    assert not world.reward(rollout, 0.5).after_consumption
    assert (world.rollout(rollout).reward, world.rollout(rollout).reward_state) == (0.5, "final")
    world.reward(rollout, 0.75)
    assert (world.rollout(rollout).reward, world.rollout(rollout).reward_state) == (0.75, "revised")
    world.reward(rollout, 9.0, name="length")
    assert world.rollout(rollout).reward == 0.75


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_refused(world: World, value: float) -> None:
    rollout = world.group().rollouts[0].id
    with pytest.raises(RewardNotFinite, match="leave it out"):
        world.reward(rollout, value)
    assert world.column(Reward, Reward.id, Reward.rollout_id == rollout) == []


def test_the_same_key_is_the_same_event(world: World) -> None:
    rollout, other = (rollout.id for rollout in world.group().rollouts)
    key = f"{rollout}/key"
    assert world.reward(rollout, 1.0, key).id == world.reward(rollout, 1.0, key).id
    assert world.rollout(rollout).reward_state == "final"
    with pytest.raises(Conflict, match="another value"):
        world.reward(rollout, 0.5, key)
    with pytest.raises(Conflict, match="another rollout_id"):
        world.reward(other, 1.0, key)
    assert world.rollout(other).reward is None


def test_rewards_name_what_exists(world: World) -> None:
    with pytest.raises(NotFound):
        world.reward("nowhere", 1.0)


def test_a_revision_after_the_lease_is_recorded_only(world: World) -> None:
    group = world.settled_group()
    fence = world.take_over()
    assert world.lease(1, fence) == [group]
    rollout = world.column(Rollout, Rollout.id, Rollout.group_id == group)[0]
    before = world.rollout(rollout).reward
    assert world.reward(rollout, 7.0).after_consumption
    world.commit(fence, [group], 1, 1)
    assert world.reward(rollout, 8.0).after_consumption
    assert world.rollout(rollout).reward == before


def test_a_revision_counts_once_the_lease_ends_without_a_step(world: World) -> None:
    """However it ends: released, run out, or taken over."""
    fence = world.take_over()
    for ending in ("release", "time", "take over"):
        group = world.settled_group(size=1)
        assert world.lease(1, fence, ttl_s=60.0) == [group]
        rollout = world.column(Rollout, Rollout.id, Rollout.group_id == group)[0]
        for value in (7.0, 8.0):
            assert world.reward(rollout, value).after_consumption
        world.reward(rollout, 3.0, name="length")
        assert world.rollout(rollout).reward == 0.0
        if ending == "release":
            with world.database.begin() as conn:
                assert groups.release(conn, group_ids=[group], fence=fence) == 1
        elif ending == "take over":
            fence = world.take_over()
        else:
            world.now += 61
            assert world.lease(1, fence) == [group]
        row = world.rollout(rollout)
        assert (row.reward, row.reward_state) == (8.0, "revised"), ending
        if ending != "time":
            assert world.lease(1, fence) == [group]
        assert world.rollout(rollout).reward == 8.0
        number = ("release", "time", "take over").index(ending) + 1
        world.commit(fence, [group], number, number)


def test_a_revision_after_a_step_counts_once_the_step_is_void(world: World) -> None:
    group = world.settled_group(size=1)
    fence = world.take_over()
    world.lease(1, fence)
    world.commit(fence, [group], 1, 1, checkpoint=None)
    rollout = world.column(Rollout, Rollout.id, Rollout.group_id == group)[0]
    world.reward(rollout, 7.0)
    world.take_over()
    assert (world.rollout(rollout).reward, world.group_state(group)) == (7.0, "settled")
    assert world.column(Reward, Reward.after_consumption, Reward.rollout_id == rollout) == [False, False]


def test_a_reward_that_came_too_late_is_the_first_where_its_group_comes_back(world: World) -> None:
    group = world.group(deadline_s=5)
    for rollout in group.rollouts:
        world.claim(rollout.id)
    world.reward(group.rollouts[0].id, 1.0)
    with world.database.begin() as conn:
        assert groups.settle_due(conn, world.policy, world.now + 5) == [group.id]
    fence, late = world.take_over(), group.rollouts[1].id
    assert world.lease(1, fence) == [group.id]
    world.reward(late, 0.5)
    assert world.rollout(late).reward is None
    world.take_over()
    assert (world.rollout(late).reward, world.rollout(late).reward_state) == (0.5, "final")


def test_a_group_without_any_reward_is_void_and_has_none(world: World) -> None:
    group = world.group()
    for rollout in group.rollouts:
        world.claim(rollout.id)
        world.finish(rollout.id, "failed")
    assert world.group_state(group.id) == "void"
    assert [world.rollout(rollout.id).reward for rollout in group.rollouts] == [None, None]
    assert world.reward(group.rollouts[0].id, 1.0).after_consumption


def test_a_rewarded_rollout_that_still_runs_holds_its_group_open(world: World) -> None:
    group = world.group(size=1)
    world.claim(group.rollouts[0].id)
    world.reward(group.rollouts[0].id, 1.0)
    assert world.group_state(group.id) == "open"
    world.finish(group.rollouts[0].id)
    assert world.group_state(group.id) == "settled"


def test_an_eval_group_settles_at_its_deadline_even_without_rewards(world: World) -> None:
    group = world.group(purpose="eval", deadline_s=5)
    with world.database.begin() as conn:
        assert groups.settle_due(conn, world.policy, world.now + 4.9) == []
        assert groups.settle_due(conn, world.policy, world.now + 5) == [group.id]
    assert world.group_state(group.id) == "settled"


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(0, 2)),
        st.tuples(st.just("reward"), st.integers(0, 2), st.sampled_from([-1.0, 0.25, 1.0])),
        st.tuples(st.sampled_from(["succeeded", "failed"]), st.integers(0, 2)),
        st.tuples(st.just("wait"), st.sampled_from([10.0, 70.0])),
        st.tuples(st.sampled_from(["sweep", "lease"])),
    ),
    max_size=14,
)


class Watched:
    """One group of three under arbitrary events, and what the test itself thinks of it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.fence = world.take_over()
        self.group = world.group(size=3, deadline_s=DEADLINE_S)
        self.given: dict[int, float] = {}
        """Index -> the last reward that came before the group was closed."""

    def apply(self, event: tuple[Any, ...]) -> None:
        world, what = self.world, event[0]
        if what == "wait":
            world.now += event[1]
        elif what == "lease":
            world.lease(1, self.fence, ttl_s=1e9)
        elif what == "sweep":
            with world.database.begin() as conn:
                rollouts.abandon_lost(conn, HEARTBEAT_S, world.now)
                groups.settle_due(conn, world.policy, world.now)
            due = world.now >= self.group.deadline_at
            assert not due or world.group_state(self.group.id) != "open", "nothing outlives its deadline"
        else:
            self.apply_to_rollout(what, *event[1:])

    def apply_to_rollout(self, what: str, index: int, value: float = 0.0) -> None:
        world, rollout = self.world, self.group.rollouts[index].id
        try:
            if what == "claim":
                world.claim(rollout)
            elif what == "reward":
                if not world.reward(rollout, value).after_consumption:
                    self.given[index] = value
            else:
                world.finish(rollout, what)
        except (RolloutEnded, Conflict):
            pass

    def check(self) -> None:
        with self.world.database.read() as conn:
            query = select(Rollout.state, Rollout.reward_state, Rollout.reward).where(
                Rollout.group_id == self.group.id
            )
            rows = conn.execute(query.order_by(Rollout.index)).all()
        for index, (state, reward_state, reward) in enumerate(rows):
            assert reward == self.given.get(index), "a reward is what was given, and null if none was"
            assert (reward is None) == (reward_state in ("pending", "expired"))
            if state in ("failed", "abandoned"):
                assert reward_state != "pending", "a crash without a reward expires at once"
        running = any(state in ("queued", "running") for state, _, _ in rows)
        complete = not running and all(reward_state != "pending" for _, reward_state, _ in rows)
        expected = {"open"} if not complete else {"settled", "leased"} if self.given else {"void"}
        assert self.world.group_state(self.group.id) in expected


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events=EVENTS)
def test_no_order_of_events_makes_a_reward_up(database: Database, events: list[tuple[Any, ...]]) -> None:
    watched = Watched(World(database))
    for event in events:
        watched.apply(event)
        watched.check()
    watched.apply(("wait", DEADLINE_S))
    watched.apply(("sweep",))
    watched.check()


@given(
    st.sampled_from(["train", "eval"]),
    st.lists(
        st.tuples(
            st.sampled_from(["queued", "running", "succeeded", "failed", "abandoned"]),
            st.sampled_from([("pending", None), ("expired", None), ("final", 0.0), ("revised", 1.0)]),
        ),
        min_size=1,
        max_size=4,
    ),
)
def test_the_rule_itself(purpose: str, members: list[tuple[str, tuple[str, float | None]]]) -> None:
    state = settle.outcome(purpose, [(state, *reward) for state, reward in members])
    ended = all(state not in ("queued", "running") for state, _ in members)
    pending = any(reward == ("pending", None) for _, reward in members)
    assert (state == "open") == (pending or not ended)
    if state != "open":
        rewarded = any(reward[1] is not None for _, reward in members)
        assert state == ("settled" if rewarded or purpose == "eval" else "void"), "a zero is a reward"
