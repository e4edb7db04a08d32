"""The runner's promises, on the real proxy: bounds, clean ends, and rewards that are missing rather than zero [I4]."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from harness_adapters.build import no_reward
from harness_adapters.client import ControlPlane
from harness_adapters.errors import ControlPlaneError, NotFound, RewardInvalid
from harness_adapters.protocol import Job, Outcome, Task
from harness_adapters.rewards import RewardFunction
from harness_adapters.runner import rollout as rollout_module
from harness_adapters.runner.local import LocalRunner, Plan
from harness_adapters.runner.report import Totals
from harness_adapters.runner.rollout import Terms
from tests.harness_adapters.conftest import ROOT, SINGLETREE, ProxyProcess, alive_with
from tests.harness_adapters.scripted_server import ScriptedServer


class InProcess:
    """An executor that runs a coroutine function: the runner without the cost of starting harnesses."""

    def __init__(self, body: Callable[[Job], Awaitable[Outcome]]) -> None:
        self._body = body

    async def start(self) -> None:
        pass

    async def run(self, job: Job) -> Outcome:
        return await self._body(job)

    async def close(self) -> None:
        pass


async def one(_task: Task, _outcome: Outcome) -> dict[str, float]:
    return {"reward": 1.0}


async def succeed(_job: Job) -> Outcome:
    return Outcome(final_text="fine")


class Run:
    """One run of ``tasks`` tasks on a policy of its own."""

    def __init__(self, proxy: ProxyProcess, upstream: ScriptedServer, policy: str, folder: Path) -> None:
        proxy.add_policy(policy, upstream.url)
        self.proxy, self.policy, self.folder = proxy, policy, folder
        self.events: list[dict[str, Any]] = []
        self.runner: LocalRunner | None = None

    def event(self, name: str, **fields: Any) -> None:
        self.events.append({"event": name, **fields})

    async def run_async(
        self,
        body: Callable[[Job], Awaitable[Outcome]],
        *,
        reward: RewardFunction = one,
        tasks: int = 3,
        plan: dict[str, Any] | None = None,
        **terms: Any,
    ) -> Totals:
        async with ControlPlane(self.proxy.url, self.proxy.key("runner")) as client:
            full_terms = Terms(
                client=client,
                executor=InProcess(body),
                reward=reward,
                runner="test",
                harness="test",
                base_url=f"{client.url}/v1",
                timeout_s=30.0,
                workspaces=self.folder,
                **terms,
            )
            settings = {"purpose": "train", "concurrency": 3, "deadline_s": 60.0, **(plan or {})}
            todo = [Task({"prompt": str(number)}) for number in range(tasks)]
            self.runner = LocalRunner(Plan(policy=self.policy, **settings), full_terms, todo, [self])
            return await self.runner.run()

    def run(self, body: Callable[[Job], Awaitable[Outcome]], **settings: Any) -> Totals:
        return asyncio.run(self.run_async(body, **settings))

    def rows(self) -> list[dict[str, Any]]:
        groups = self.proxy.groups(self.policy)
        return [self.proxy.rollout(rollout["id"]) for group in groups for rollout in group["rollouts"]]


@pytest.fixture
def start(
    proxy: ProxyProcess, clerk_upstream: ScriptedServer, tmp_path: Path, request: pytest.FixtureRequest
) -> Run:
    policy = request.node.name.replace("_", "-").replace("[", "-").replace("]", "")[:60]
    return Run(proxy, clerk_upstream, policy, tmp_path)


def test_never_more_rollouts_at_once_than_allowed(start: Run) -> None:
    running, most = 0, 0

    async def body(_job: Job) -> Outcome:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
        return Outcome()

    totals = start.run(body, tasks=5, plan={"concurrency": 3})
    assert (totals.succeeded, most) == (10, 3)


def test_workspaces_are_apart_and_gone_afterwards(start: Run, tmp_path: Path) -> None:
    template = tmp_path / "template"
    template.mkdir()
    (template / "given.txt").write_text("given")
    seen: list[Path] = []

    async def body(job: Job) -> Outcome:
        assert [path.name for path in job.workspace.iterdir()] == ["given.txt"]
        (job.workspace / "locked").mkdir(mode=0o500)
        (job.scratch / "log").write_text("log")
        seen.append(job.workspace)
        return Outcome()

    totals = start.run(body, template=template)
    assert totals.succeeded == 6 and len(set(seen)) == 6
    assert list(tmp_path.glob("singletree-*")) == []


def test_a_failed_rollout_has_no_reward_and_not_zero(start: Run) -> None:
    async def body(job: Job) -> Outcome:
        kinds = {"0": "exit", "1": "upstream", "2": None}
        kind = kinds[job.task.prompt]
        return Outcome(failure=kind, error=kind and f"it was {kind}")  # type: ignore[arg-type]

    totals = start.run(body)
    assert (totals.succeeded, totals.failed, totals.unrewarded, totals.rewarded) == (2, 4, 4, 2)
    for row in start.rows():
        if row["state"] == "failed":
            assert (row["reward"], row["reward_state"], row["rewards"]) == (None, "expired", [])
            assert row["error"].startswith("it was") and row["info"]["failure"] in ("exit", "upstream")
        else:
            assert (row["reward"], row["reward_state"]) == (1.0, "final")
    states = [group["state"] for group in start.proxy.groups(start.policy)]
    assert states == ["void", "void", "settled"]


def test_an_error_that_nobody_foresaw_is_one_rollouts_own(start: Run) -> None:
    async def body(job: Job) -> Outcome:
        if job.task.prompt == "0":
            raise ZeroDivisionError("in the adapter")
        return Outcome(data={"score": float("nan")}, final_text="a\x00b")

    async def reward(task: Task, _outcome: Outcome) -> dict[str, float]:
        if task.prompt == "1":
            raise OverflowError("in the reward")
        return {"reward": 1.0}

    totals = start.run(body, reward=reward)
    assert (totals.succeeded, totals.failed, totals.rewarded) == (2, 4, 2)
    rows = start.rows()
    assert sum("ZeroDivisionError: in the adapter" in (row["error"] or "") for row in rows) == 2
    assert sum("OverflowError: in the reward" in (row["error"] or "") for row in rows) == 2
    assert [row["info"]["data"] for row in rows if row["reward"] == 1.0] == [{"score": None}] * 2


def test_failures_are_scored_only_when_asked_and_only_those_of_the_agent(start: Run) -> None:
    async def body(job: Job) -> Outcome:
        kinds = {"0": "agent", "1": "timeout", "2": "upstream"}
        return Outcome(failure=kinds[job.task.prompt], error="x")  # type: ignore[arg-type]

    totals = start.run(body, score_failures=frozenset({"agent"}), failure_reward=-1.0)
    assert (totals.failed, totals.rewarded, totals.unrewarded) == (6, 2, 4)
    rewards = [(row["state"], row["reward"]) for row in start.rows()]
    assert rewards == [("failed", -1.0)] * 2 + [("failed", None)] * 4


def test_a_reward_function_at_fault_fails_the_rollout_and_not_the_run(start: Run) -> None:
    async def reward(task: Task, _outcome: Outcome) -> dict[str, float]:
        if task.prompt == "1":
            raise RewardInvalid("f returned nan for 'reward'; a reward must be a finite number")
        return {"reward": 0.5, "length": 3.0}

    totals = start.run(succeed, reward=reward)
    assert (totals.succeeded, totals.failed) == (4, 2)
    failed = [row for row in start.rows() if row["state"] == "failed"]
    assert len(failed) == 2
    for row in failed:
        assert row["reward"] is None and "finite number" in row["error"]
    fine = next(row for row in start.rows() if row["state"] == "succeeded")
    assert {event["name"]: event["value"] for event in fine["rewards"]} == {"reward": 0.5, "length": 3.0}


def test_a_reward_may_come_later(start: Run) -> None:
    totals = start.run(succeed, reward=no_reward, tasks=1)
    assert totals.succeeded == 2 and totals.unrewarded == 2
    assert {row["reward_state"] for row in start.rows()} == {"pending"}


@pytest.mark.parametrize("limit", [{"limit": 2}, {"rollouts": 3}])
def test_limits_end_a_run_in_whole_groups(start: Run, limit: dict[str, int]) -> None:
    assert start.run(succeed, tasks=10, plan=limit).succeeded == 4


def test_stopping_ends_running_rollouts_and_starts_none(start: Run, tmp_path: Path) -> None:
    async def body(_job: Job) -> Outcome:
        await asyncio.sleep(60)
        return Outcome()

    async def main() -> Totals:
        run = asyncio.create_task(start.run_async(body, plan={"concurrency": 1}))
        while not any(tmp_path.glob("singletree-*")):  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.02)
        assert start.runner is not None
        start.runner.stop()
        return await run

    totals = asyncio.run(main())
    assert totals.stopped and list(tmp_path.glob("singletree-*")) == []
    rows = start.rows()
    assert len(rows) == 2, "one group was made; of its two rollouts one was running and one waited"
    for row in rows:
        assert (row["state"], row["reward"], row["error"]) == ("failed", None, "the runner was stopped")


def test_a_rollout_that_the_proxy_ended_is_ended_here_too(
    start: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_module, "HEARTBEAT_S", 0.1)
    ended = []

    async def body(job: Job) -> Outcome:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(job.rollout_id)
        return Outcome()

    started = time.monotonic()
    totals = start.run(body, tasks=1, plan={"deadline_s": 0.5})
    assert time.monotonic() - started < 30
    assert totals.lost == 2 and len(ended) == 2
    assert {row["state"] for row in start.rows()} == {"abandoned"}


def test_an_unknown_policy_is_named(start: Run) -> None:
    start.policy = "no-such-policy"
    with pytest.raises(NotFound, match=r"policy 'no-such-policy' is unknown.*PUT /api/policies"):
        start.run(succeed)


def test_a_policy_without_an_engine_is_refused_before_any_group(start: Run) -> None:
    start.policy = "no-engine"
    start.proxy.call("PUT", "/api/policies/no-engine", {"kind": "frozen", "model": "m"})
    with pytest.raises(ControlPlaneError, match="no engine serves policy 'no-engine'"):
        start.run(succeed)
    assert start.proxy.groups("no-engine") == []


def test_a_run_whose_every_call_fails_is_ended(start: Run) -> None:
    async def body(_job: Job) -> Outcome:
        return Outcome(failure="upstream", error="503 from the engine")

    with pytest.raises(ControlPlaneError, match="got no answer from the model"):
        start.run(body, tasks=200)
    assert len(start.rows()) < 40
    assert {row["state"] for row in start.rows()} == {"failed"}


def test_the_runner_waits_for_the_trainer(proxy: ProxyProcess, start: Run) -> None:
    """Admission control: one group may be outstanding; the next is made once the first no longer counts."""
    body = {"kind": "frozen", "model": "scripted", "group_size": 2, "rollouts_per_step": 2}
    proxy.call("PUT", f"/api/policies/{start.policy}", body)

    async def main() -> Totals:
        run = asyncio.create_task(start.run_async(succeed, tasks=2))
        while not any(event["event"] == "admission_wait" for event in start.events):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        assert len(proxy.groups(start.policy)) == 1
        proxy.call("PUT", f"/api/policies/{start.policy}", {**body, "rollouts_per_step": 4})
        return await run

    assert asyncio.run(main()).succeeded == 4
    assert [event["event"] for event in start.events].count("admission_wait") == 1


HANGS = """
import os, subprocess, time
subprocess.Popen(["sleep", "300"], start_new_session=True)
open("started", "w").close()
time.sleep(300)
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_leaves_no_process_and_no_workspace(
    proxy: ProxyProcess, clerk_upstream: ScriptedServer, tmp_path: Path, signum: signal.Signals
) -> None:
    policy = f"ctrl-c-{signum.name.lower()}"
    proxy.add_policy(policy, clerk_upstream.url)
    (tmp_path / "hangs.py").write_text(HANGS)
    workspaces = tmp_path / "workspaces"
    workspaces.mkdir()
    config = {
        "proxy": proxy.url,
        "keys_file": str(proxy.keys_file),
        "policy": policy,
        "workspaces": str(workspaces),
        "harness": {"kind": "command", "argv": [sys.executable, "-S", str(tmp_path / "hangs.py")]},
        "tasks": {"kind": "inline", "tasks": ["a", "b"]},
        "reward": {"kind": "exit-code"},
    }
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SINGLETREE_")}
    runner = subprocess.Popen(
        [str(SINGLETREE), "run", str(tmp_path / "config.yaml")],
        env=environment,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    deadline = time.monotonic() + 30
    while len(list(workspaces.glob("*/*/started"))) < 4:
        assert time.monotonic() < deadline and runner.poll() is None
        time.sleep(0.05)
    rollouts = [rollout["id"] for group in proxy.groups(policy) for rollout in group["rollouts"]]
    assert all(len(alive_with(rollout)) == 2 for rollout in rollouts)
    runner.send_signal(signum)
    output, _ = runner.communicate(timeout=20)
    assert runner.returncode == 130, output
    assert b"Traceback" not in output
    assert [alive_with(rollout) for rollout in rollouts] == [set()] * 4
    assert list(workspaces.iterdir()) == []
    for rollout in rollouts:
        row = proxy.rollout(rollout)
        assert (row["state"], row["reward"], row["error"]) == ("failed", None, "the runner was stopped")
