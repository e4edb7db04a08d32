"""Warm workers: many rollouts in one process, each under its own key, and none harmed by another's fault for long."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harness_adapters.errors import WorkerBroken
from harness_adapters.protocol import Endpoint, Job, Outcome, Task
from harness_adapters.pydantic_ai import PydanticAI
from harness_adapters.runner import pool as pool_module
from harness_adapters.runner.pool import WorkerPool
from tests.harness_adapters.conftest import ROOT, alive_with
from tests.harness_adapters.scripted_server import ScriptedServer, shop_clerk

HERE = "tests.harness_adapters.agents_under_test"


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def job(
    number: int, payload: dict[str, Any], url: str = "http://127.0.0.1:9", timeout_s: float = 30.0
) -> Job:
    endpoint = Endpoint(f"{url}/v1", f"key-{number}", "scripted")
    return Job(f"rol_{number}", Task(payload), endpoint, Path(), Path(), timeout_s)


def price_job(number: int, url: str) -> Job:
    return job(number, {"prompt": f"Price of item{number}?", "prices": {f"item{number}": number}}, url)


def run_all(agent: str, jobs: list[Job], **settings: Any) -> list[Outcome]:
    async def main() -> list[Outcome]:
        pool = WorkerPool(PydanticAI(agent=f"{HERE}:{agent}", **settings))
        try:
            await pool.start()
            return await asyncio.gather(*(pool.run(one) for one in jobs))
        finally:
            await pool.close()

    return asyncio.run(main())


def test_no_call_ever_goes_out_under_another_rollouts_key() -> None:
    """24 rollouts at once share one agent, one client and its connections."""

    def slow_clerk(body: dict[str, Any]) -> dict[str, Any]:
        return {**shop_clerk(body), "delay": 0.02 * (len(str(body)) % 5)}

    with ScriptedServer(slow_clerk) as server:
        outcomes = run_all("clerk", [price_job(number, server.url) for number in range(24)])
    assert [outcome.final_text for outcome in outcomes] == [str(number) for number in range(24)]
    assert len(server.seen) == 48
    for seen in server.seen:
        user = next(message for message in seen.body["messages"] if message["role"] == "user")
        assert user["content"] == f"Price of item{seen.key.removeprefix('key-')}?"


def test_faults_of_one_rollout_stay_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CANCEL_WAIT_S", 1.0)
    kinds = ["raise", "exit", "sleep", "fine"]
    jobs = [job(number, {"do": kind}, timeout_s=3.0) for number, kind in enumerate(kinds)]
    raised, exited, slept, fine = run_all("misbehaving", jobs)
    assert (raised.failure, raised.error) == ("error", "RuntimeError: the user's own bug with two lines")
    assert (exited.failure, exited.error) == ("error", "SystemExit: 3")
    assert slept.failure == "timeout" and slept.timed_out
    assert fine.succeeded and fine.final_text == "fine"


def test_a_worker_that_hangs_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "CANCEL_WAIT_S", 0.5)

    async def main() -> tuple[Outcome, Outcome, Outcome]:
        pool = WorkerPool(PydanticAI(agent=f"{HERE}:misbehaving"))
        try:
            await pool.start()
            blocked = asyncio.create_task(pool.run(job(1, {"do": "block"}, timeout_s=1.0)))
            bystander = asyncio.create_task(pool.run(job(2, {"do": "sleep"}, timeout_s=20.0)))
            first, second = await blocked, await bystander
            return first, second, await pool.run(job(3, {"do": "fine"}))
        finally:
            await pool.close()

    blocked, bystander, later = asyncio.run(main())
    assert blocked.failure == "timeout"
    assert bystander.failure == "error" and "worker" in str(bystander.error)
    assert later.succeeded


def test_closing_leaves_no_process_of_any_worker() -> None:
    async def main() -> set[int]:
        pool = WorkerPool(PydanticAI(agent=f"{HERE}:misbehaving"))
        await pool.start()
        (worker,) = pool._workers
        running = asyncio.create_task(pool.run(job(1, {"do": "fork"}, timeout_s=20.0)))
        while len(alive_with(worker._marker)) < 2:  # noqa: ASYNC110 (other processes set no event)
            await asyncio.sleep(0.05)
        await pool.close()
        assert (await running).failure == "error"
        return alive_with(worker._marker)

    assert asyncio.run(main()) == set()


def test_an_agent_that_cannot_be_loaded_is_refused_before_any_rollout() -> None:
    async def main() -> None:
        pool = WorkerPool(PydanticAI(agent="no.such.module:agent"))
        try:
            await pool.start()
        finally:
            await pool.close()

    with pytest.raises(WorkerBroken, match="no module named 'no'; run from the folder"):
        asyncio.run(main())
