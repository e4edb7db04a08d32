"""[I6] Each group is consumed at most once by steps that hold, in any order of leases, commits, crashes, take-overs."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import select

from spanlog import groups, steps
from spanlog.database import Database
from spanlog.errors import Conflict, FenceLost, LeaseLost
from spanlog.models import Group, Metric, Policy, PolicyVersion, Rollout, TrainSample, TrainStep
from tests.spanlog.world import World


def policy(world: World) -> Any:
    with world.database.read() as conn:
        return conn.execute(select(Policy.__table__).where(Policy.id == world.policy)).one()


def test_a_step_writes_all_of_itself(world: World) -> None:
    group = world.settled_group()
    fence = world.take_over()
    step = world.commit(fence, world.lease(1, fence), 1, 1)
    assert world.group_state(group) == "consumed"
    assert world.column(Group, Group.step_id, Group.id == group) == [step]
    assert len(world.column(TrainSample, TrainSample.id, TrainSample.step_id == step)) == 2
    assert world.column(Metric, Metric.name, Metric.policy_id == world.policy) == ["loss"]
    assert (policy(world).version, policy(world).committed_version) == (0, 1)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"fence": -1}, FenceLost),
        ({"number": 2}, Conflict),
        ({"version": 0}, Conflict),
        ({"extra": True}, LeaseLost),
    ],
)
def test_a_refused_step_changes_nothing(world: World, change: dict[str, Any], error: type[Exception]) -> None:
    group, other = world.settled_group(), world.settled_group()
    fence = world.take_over()
    leased = world.lease(1, fence)
    with pytest.raises(error):
        world.commit(
            fence + change.get("fence", 0),
            [*leased, other] if "extra" in change else leased,
            change.get("number", 1),
            change.get("version", 1),
        )
    assert (world.group_state(group), world.group_state(other)) == ("leased", "settled")
    assert world.column(TrainStep, TrainStep.id, TrainStep.policy_id == world.policy) == []
    assert policy(world).committed_version == 0


def test_a_stage_without_leases_is_fenced_too(world: World) -> None:
    fence = world.take_over()
    assert world.take_over() == fence + 1
    with pytest.raises(FenceLost):
        world.commit(fence, [], 1, 1)
    assert world.column(TrainStep, TrainStep.id, TrainStep.policy_id == world.policy) == []
    world.commit(fence + 1, [], 1, 1)


def test_taking_over_goes_back_to_the_checkpoint(world: World) -> None:
    first, second, third = (world.settled_group() for _ in range(3))
    fence = world.take_over()
    kept = world.commit(fence, world.lease(1, fence), 1, 1, "step-1")
    publish(world, fence, 0, 1, kept)
    lost = world.commit(fence, world.lease(1, fence), 2, 2, None)
    world.lease(1, fence)
    again = world.take_over()
    assert again == fence + 1
    states = [world.group_state(group) for group in (first, second, third)]
    assert states == ["consumed", "settled", "settled"]
    assert world.column(TrainStep, TrainStep.id, TrainStep.policy_id == world.policy, TrainStep.void) == [
        lost
    ]
    assert world.column(Metric, Metric.step, Metric.policy_id == world.policy) == [1]
    assert (policy(world).version, policy(world).committed_version) == (1, 1)
    with world.database.begin() as conn:
        last = steps.last_step(conn, world.policy)
        assert last is not None and (last.id, last.checkpoint_path) == (kept, "step-1")
        assert steps.next_version(conn, world.policy) == 3, "the void step's number may be on an engine"
    with pytest.raises(Conflict, match="next_version"):
        world.commit(again, world.lease(1, again), 2, 2)
    world.commit(
        again, world.column(Group, Group.id, Group.lease_fence == again, Group.state == "leased"), 2, 3
    )


def publish(world: World, fence: int, expected: int, new: int, step_id: str | None) -> None:
    with world.database.begin() as conn:
        steps.stage_version(conn, world.policy, fence, new, f"v{new}", step_id, world.now)
        steps.publish_version(conn, world.policy, fence, expected, new, f"v{new}", step_id, world.now)


def test_publishing_compares_and_swaps(world: World) -> None:
    fence = world.take_over()
    publish(world, fence, 0, 1, None)
    assert (policy(world).version, policy(world).committed_version) == (1, 1)
    for expected, new in ((0, 2), (1, 1), (1, 0)):
        with pytest.raises(Conflict), world.database.begin() as conn:
            steps.publish_version(conn, world.policy, fence, expected, new, "x", None, world.now)
    world.take_over()
    with pytest.raises(FenceLost):
        publish(world, fence, 1, 2, None)
    assert policy(world).version == 1
    assert world.column(PolicyVersion, PolicyVersion.state, PolicyVersion.policy_id == world.policy) == [
        "published"
    ]


def test_a_failed_version_is_spent(world: World) -> None:
    fence = world.take_over()
    with world.database.begin() as conn:
        steps.stage_version(conn, world.policy, fence, 1, "a", None, world.now)
        steps.fail_version(conn, world.policy, fence, 1)
        assert steps.next_version(conn, world.policy) == 2
        with pytest.raises(Conflict, match="used before"):
            steps.stage_version(conn, world.policy, fence, 1, "b", None, world.now)
    publish(world, fence, 0, 2, None)
    assert policy(world).version == 2


class Trainer:
    """A trainer process: what it remembers, which may be out of date."""

    def __init__(self) -> None:
        self.fence = 0
        self.held: list[str] = []


class Crashed(Exception):
    pass


class Race:
    """Two trainers that both believe that the policy is theirs."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.trainers = [Trainer(), Trainer()]
        self.newest = 0
        for _ in range(4):
            world.settled_group()
            world.now += 1

    def apply(self, what: str, trainer: Trainer, checkpoint: bool) -> None:
        if what == "take_over":
            trainer.fence, trainer.held = self.world.take_over(), []
            self.newest = max(self.newest, trainer.fence)
        elif what == "lease":
            self.lease(trainer)
        elif what == "forget":
            trainer.held = []
        elif what == "release":
            with self.world.database.begin() as conn:
                groups.release(conn, group_ids=trainer.held, fence=trainer.fence)
        elif what == "wait":
            self.world.now += 100
        else:
            self.commit(trainer, checkpoint, crash=what == "crash")

    def lease(self, trainer: Trainer) -> None:
        try:
            trainer.held = self.world.lease(1, trainer.fence, ttl_s=50) or trainer.held
        except FenceLost:
            assert trainer.fence != self.newest
        else:
            assert trainer.fence == self.newest, "who was fenced off leases nothing"

    def commit(self, trainer: Trainer, checkpoint: bool, crash: bool) -> None:
        world = self.world
        with world.database.begin() as conn:
            last = steps.last_step(conn, world.policy)
            version = steps.next_version(conn, world.policy)
            version = max(version, 0 if last is None else last.version)
        number = 1 if last is None else last.number + 1
        before = self.consumed()
        try:
            if crash:
                self.crash(trainer, number, version)
            else:
                world.commit(trainer.fence, trainer.held, number, version, "folder" if checkpoint else None)
        except (FenceLost, Crashed):
            assert self.consumed() == before, "what was not committed changes nothing"
            return
        assert trainer.fence == self.newest, "who was fenced off commits nothing"
        assert before.isdisjoint(trainer.held), "no group is consumed twice"

    def crash(self, trainer: Trainer, number: int, version: int) -> None:
        """The process dies inside the transaction."""
        step = steps.StepCommit(
            self.world.policy, trainer.fence, number, "rl", version, "folder", trainer.held, [], {}, 0.0, 0.0
        )
        with self.world.database.begin() as conn:
            steps.commit_step(conn, step)
            raise Crashed

    def consumed(self) -> set[str]:
        return set(
            self.world.column(
                Group, Group.id, Group.policy_id == self.world.policy, Group.state == "consumed"
            )
        )

    def check(self) -> None:
        with self.world.database.read() as conn:
            trained = conn.execute(
                select(Rollout.group_id, TrainStep.id)
                .distinct()
                .join(TrainSample, TrainSample.rollout_id == Rollout.id)
                .join(TrainStep, TrainStep.id == TrainSample.step_id)
                .where(Rollout.policy_id == self.world.policy, TrainStep.void.is_(False))
            ).all()
            named = conn.execute(
                select(Group.id, Group.step_id).where(
                    Group.policy_id == self.world.policy, Group.state == "consumed"
                )
            ).all()
        assert len({group for group, _ in trained}) == len(trained), (
            "consumed once at most by steps that hold"
        )
        assert set(named) == set(trained), "a consumed group names the one step that trained on it"


MOVES = st.lists(
    st.tuples(
        st.sampled_from(
            ["take_over", "lease", "lease", "commit", "commit", "crash", "forget", "release", "wait"]
        ),
        st.integers(0, 1),
        st.booleans(),
    ),
    max_size=14,
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(moves=MOVES)
def test_groups_are_consumed_once(database: Database, moves: list[tuple[str, int, bool]]) -> None:
    race = Race(World(database))
    race.apply("take_over", race.trainers[0], False)
    race.check()
    for what, who, checkpoint in moves:
        race.apply(what, race.trainers[who], checkpoint)
        if what in ("take_over", "commit", "crash"):
            race.check()
