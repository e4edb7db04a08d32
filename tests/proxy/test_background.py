"""The loops beside the calls: engines are watched and deadlines kept, whatever went wrong in the round before."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from sqlalchemy import insert, select, text, update

from proxy import sweeper
from proxy.engine import client, store
from proxy.sweeper import Listening
from spanlog.database import open_database
from spanlog.errors import WriterClosed
from spanlog.models import Engine, Policy, Rollout
from spanlog.writer import SpanDraft
from tests.proxy.conftest import Served, serve, wait_for
from tests.proxy.fake_engine import FakeEngine


class FailsAtFirst:
    """Calls ``then``, but for the first times, which fail with an error that nobody named."""

    def __init__(self, then: Any, times: int) -> None:
        self.then, self.times = then, times

    def __call__(self, *arguments: Any) -> Any:
        self.times -= 1
        if self.times >= 0:
            raise RuntimeError("not foreseen")
        return self.then(*arguments)


def test_the_watch_goes_on_after_an_error_that_nobody_named(
    ready: Served, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = FailsAtFirst(store.read_engines, 2)
    monkeypatch.setattr(store, "read_engines", failing)
    wait_for(lambda: failing.times < 0)
    fake.label = "pol:7"
    wait_for(lambda: ready.ok("GET", "/api/engines/eng")["state"] == "stale")


def test_a_check_goes_on_after_an_error_that_nobody_named(
    ready: Served, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = FailsAtFirst(store.change_engine, 1)
    monkeypatch.setattr(store, "change_engine", failing)
    fake.label = "pol:7"
    wait_for(lambda: ready.ok("GET", "/api/engines/eng")["state"] == "stale")
    assert failing.times < 0


def test_the_sweeper_goes_on_after_an_error_that_nobody_named(
    proxy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = FailsAtFirst(sweeper.sweep, 2)
    monkeypatch.setattr(sweeper, "sweep", failing)
    wait_for(lambda: failing.times < 0)
    proxy.policy()
    group = proxy.ok("POST", "/api/groups", {"policy": "pol", "task": {}, "size": 1, "deadline_s": 0.1})
    wait_for(lambda: proxy.ok("GET", f"/api/groups/{group['id']}")["state"] == "void")


def test_spans_are_written_at_the_end_though_a_loop_had_died(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def dies(*_: Any) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr("proxy.app.run_sweeper", dies)
    with serve(sqlite_url) as proxy:
        writer = proxy.app.control.state.services.writer
    with pytest.raises(WriterClosed):
        writer.submit(SpanDraft(rollout_id="", policy_id="", started_at=0.0, ended_at=0.0, request=b""))


@pytest.mark.postgres
def test_engines_are_touched_in_the_order_in_which_others_lock_them(postgres_url: str) -> None:
    database = open_database(postgres_url, migrate=True)
    row = {"policy_id": "p", "base_url": "u", "kind": "vllm", "state": "ready", "capabilities": {}}
    with database.begin() as conn:
        conn.execute(insert(Policy).values(id="p", kind="train", model="m", created_at=0.0))
        for engine_id in ("b", "a"):  # an update goes through the table as it lies
            conn.execute(insert(Engine).values(id=engine_id, **row, registered_at=0.0, seen_at=0.0))

    def touch() -> None:
        with database.begin() as conn:
            store.touch_engines(conn, ["a", "b"], 1.0)

    toucher = threading.Thread(target=touch)
    waiting = text("SELECT count(*) FROM pg_locks WHERE NOT granted")
    with database.begin() as conn:
        conn.execute(select(Engine.id).where(Engine.id == "a").with_for_update())
        toucher.start()
        with database.read() as other:
            wait_for(lambda: other.execute(waiting).scalar_one() > 0)
        conn.execute(select(Engine.id).where(Engine.id == "b").with_for_update(nowait=True))
    toucher.join(10)
    database.close()


def test_silence_says_nothing_until_everybody_could_be_heard() -> None:
    listening = Listening(60.0, 1.0)
    assert listening.timeout_s(1000.0) is None, "just started: the runners had nobody to speak to"
    for now in range(1000, 1060):
        listening.last_round = float(now)
        assert listening.timeout_s(now + 0.9) is None
    assert listening.timeout_s(1060.0) == 60.0
    listening.last_round = 1060.0
    assert listening.timeout_s(1085.0) == 60.0, "a little late"
    listening.last_round = 1085.0
    assert listening.timeout_s(1200.0) is None, "the machine slept"
    listening.last_round = 1200.0
    assert listening.timeout_s(1215.0) is None
    listening.last_round = 1215.0
    listening.last_round = 1240.0
    assert listening.timeout_s(1260.0) == 60.0


def test_an_outage_of_the_proxy_abandons_nobody(sqlite_url: str) -> None:
    with serve(sqlite_url) as proxy:
        proxy.policy()
        rollout, _ = proxy.rollout()
    with serve(sqlite_url, heartbeat_timeout_s=1.0) as proxy:
        with proxy.database.begin() as conn:
            conn.execute(update(Rollout).values(heartbeat_at=time.time() - 3600))
        time.sleep(0.5)
        assert proxy.ok("GET", f"/api/rollouts/{rollout}")["state"] == "running"
        wait_for(lambda: proxy.ok("GET", f"/api/rollouts/{rollout}")["state"] == "abandoned")


@pytest.mark.parametrize(
    ("what", "state"),
    [("silent_routes", "quarantined"), ("closed_routes", "gone"), ("cut_routes", "gone")],
)
def test_a_slow_engine_is_not_a_restarted_one(
    sqlite_url: str, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, what: str, state: str
) -> None:
    monkeypatch.setattr(client, "CHECK_TIMEOUT_S", 0.1)
    with serve(sqlite_url, engine_poll_s=0.05) as proxy:
        proxy.policy()
        proxy.engine(fake)
        with proxy.database.begin() as conn:
            conn.execute(update(Engine).values(state="quarantined", version=None))
        routes: set[str] = getattr(fake, what)
        routes.add("/health")
        pool = proxy.app.control.state.services.pool
        wait_for(lambda: pool.engines["eng"].failures > 3)
        assert proxy.ok("GET", "/api/engines/eng")["state"] == state
        routes.clear()
        expected = "ready" if state == "gone" else state
        wait_for(lambda: pool.engines["eng"].failures == 0)
        wait_for(lambda: proxy.ok("GET", "/api/engines/eng")["state"] == expected)


def test_a_paused_engine_does_not_become_ready(ready: Served, fake: FakeEngine) -> None:
    fake.paused = True
    with ready.database.begin() as conn:
        conn.execute(update(Engine).values(state="gone", version=None))
    time.sleep(0.6)
    assert ready.ok("GET", "/api/engines/eng")["state"] == "gone"
    fake.paused = False
    wait_for(lambda: ready.ok("GET", "/api/engines/eng")["state"] == "ready")


def test_a_refused_connection_is_no_silence(sqlite_url: str, fake: FakeEngine) -> None:
    with serve(sqlite_url, engine_poll_s=0.05) as proxy:
        proxy.policy()
        proxy.engine(fake)
        with proxy.database.begin() as conn:
            conn.execute(update(Engine).values(state="draining", base_url="http://127.0.0.1:9"))
        wait_for(lambda: proxy.ok("GET", "/api/engines/eng")["state"] == "gone")
