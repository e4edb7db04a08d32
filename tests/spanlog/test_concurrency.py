"""Many processes' worth of threads at once: no deadlock, no error but the named ones, no group consumed twice."""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Callable

from sqlalchemy import func, select

from spanlog import groups, rollouts, steps, versions
from spanlog.database import Database, open_database
from spanlog.errors import SpanlogError
from spanlog.models import Group, Rollout, TrainSample, TrainStep
from spanlog.writer import SpanWriter
from tests.spanlog.world import World

THREADS = 5
TURNS = 12


class Load:
    """Threads that do everything to one policy, in an order of their own."""

    def __init__(self, world: World, url: str) -> None:
        self.world = world
        self.url = url
        self.faults: list[BaseException] = []

    def run(self) -> None:
        threads = [threading.Thread(target=self.work, args=(seed,)) for seed in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not any(thread.is_alive() for thread in threads), "a deadlock"

    def work(self, seed: int) -> None:
        choose = random.Random(seed)
        database = open_database(self.url, migrate=False, durability="async")
        writer = SpanWriter(database)
        try:
            for _ in range(TURNS):
                action = choose.choice([self.live, self.live, self.live, self.train, self.sweep, self.swap])
                with contextlib.suppress(SpanlogError):
                    action(database, writer, choose)
        except BaseException as error:
            self.faults.append(error)
        finally:
            writer.close()
            database.close()

    def live(self, database: Database, writer: SpanWriter, choose: random.Random) -> None:
        """A group from its creation to its rewards, with spans."""
        world = World.__new__(World)
        world.__dict__ |= self.world.__dict__ | {"database": database}
        group = world.group(size=2, deadline_s=choose.choice([0.0, 60.0]))
        order = choose.sample(group.rollouts, 2)
        for rollout in order:
            world.claim(rollout.id)
        shared = [b'{"same": 1}' * 20, b'{"other": 1}' * 20]
        choose.shuffle(shared)
        futures = [
            writer.submit(world.draft(choose.choice(order).id, request=request)) for request in shared * 3
        ]
        for rollout in order:
            world.reward(rollout.id, 1.0)
            world.finish(rollout.id, choose.choice(["succeeded", "failed"]))
        for future in futures:
            assert future.exception(60) is None

    def train(self, database: Database, _writer: SpanWriter, choose: random.Random) -> None:
        """A trainer that takes over, leases, and commits or crashes."""
        world = World.__new__(World)
        world.__dict__ |= self.world.__dict__ | {"database": database}
        fence = world.take_over()
        held = world.lease(choose.choice([1, 2]), fence)
        if held:
            with database.begin() as conn:
                last, version = steps.last_step(conn, world.policy), steps.next_version(conn, world.policy)
            world.commit(fence, held, 1 if last is None else last.number + 1, version)

    def sweep(self, database: Database, _writer: SpanWriter, _choose: random.Random) -> None:
        with database.begin() as conn:
            rollouts.abandon_lost(conn, 1e6, self.world.now)
        with database.begin() as conn:
            groups.settle_due(conn, self.world.policy, self.world.now + 1)

    def swap(self, database: Database, _writer: SpanWriter, _choose: random.Random) -> None:
        with database.begin() as conn:
            swap = versions.begin_swap(conn, self.world.engine, 1)
        with database.begin() as conn:
            versions.end_swap(conn, swap)
        with database.begin() as conn:
            versions.void_swap(conn, swap)


def test_everything_at_once(make_url: Callable[..., str]) -> None:
    url = make_url()
    database = open_database(url, migrate=False)
    world = World(database)
    load = Load(world, url)
    load.run()
    assert load.faults == []
    with database.read() as conn:
        twice = conn.execute(
            select(Rollout.group_id)
            .join(TrainSample, TrainSample.rollout_id == Rollout.id)
            .join(TrainStep, TrainStep.id == TrainSample.step_id)
            .where(TrainStep.void.is_(False))
            .group_by(Rollout.group_id)
            .having(func.count(TrainStep.id.distinct()) > 1)
        ).all()
        assert twice == []
        assert conn.execute(select(func.count()).where(Group.policy_id == world.policy)).scalar_one() > 0
    database.close()
