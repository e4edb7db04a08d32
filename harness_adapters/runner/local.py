"""The local runner: tasks in, rewarded rollouts out, at most so many at once.

It makes a group when a place is free, waits out admission control, and starts the group's rollouts in order. One
failed rollout fails alone. The run ends when its tasks or limits are used up, when it is stopped, or with an error
when the proxy is lost or nothing gets an answer any more; in every case each claimed rollout is finished, each process
ended and each workspace removed.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from harness_adapters.errors import AdmissionRefused, Conflict, ControlPlaneError, NotFound
from harness_adapters.protocol import Task
from harness_adapters.runner.ids import GroupIds
from harness_adapters.runner.report import Observer, Totals
from harness_adapters.runner.rollout import STOP_WAIT_S, Result, Terms, run_rollout

ENGINE_POLL_S = 1.0


@dataclass(frozen=True)
class Plan:
    """What to run."""

    policy: str
    purpose: str
    concurrency: int
    deadline_s: float
    group_size: int | None = None
    """Null: the policy's."""
    limit: int | None = None
    """Tasks at most."""
    rollouts: int | None = None
    """Rollouts at most, in whole groups."""
    steps: int | None = None
    """End once the policy's version has risen by this many."""
    engine_wait_s: float = 600.0
    """How long an engine may take to become ready."""


class LocalRunner:
    """Runs a plan on this machine. ``stop()`` may be called from a signal handler of the loop."""

    def __init__(
        self, plan: Plan, terms: Terms, tasks: Iterable[Task], observers: Sequence[Observer] = ()
    ) -> None:
        self.plan = plan
        self.terms = terms
        self.totals = Totals()
        self._tasks = tasks
        self._observers = observers
        self._ids = GroupIds()
        self._places = asyncio.Semaphore(plan.concurrency)
        self._queued: set[str] = set()
        self._upstream_failures = 0
        self._work: asyncio.Task[None] | None = None

    def stop(self) -> None:
        """Stop: running rollouts are ended and finished as failed, unrewarded; none is started."""
        if self._work is not None:
            self._work.cancel()

    async def run(self) -> Totals:
        """Run to the end. Raises ``ControlPlaneError`` if the proxy is lost, ``WorkerBroken`` if no worker starts."""
        started = time.monotonic()
        self._work = asyncio.create_task(self._run())
        try:
            await asyncio.wait([self._work])
        except asyncio.CancelledError:
            self._work.cancel()
            await asyncio.wait([self._work])
        self.totals.duration_s = time.monotonic() - started
        self.totals.stopped = self._work.cancelled()
        self._tell("run_ended", stopped=self.totals.stopped, rollouts=self.totals.rollouts)
        if not self._work.cancelled() and (error := self._work.exception()) is not None:
            raise first_cause(error)
        return self.totals

    async def _run(self) -> None:
        policy = await self.terms.client.policy(self.plan.policy)
        await self._await_engine()
        try:
            await self.terms.executor.start()
            self._tell(
                "run_started", policy=self.plan.policy, purpose=self.plan.purpose, version=policy["version"]
            )
            async with asyncio.TaskGroup() as rollouts:
                async for group, task in self._groups(policy["version"]):
                    for rollout_id in group:
                        await self._places.acquire()
                        rollouts.create_task(self._one(rollout_id, group[rollout_id], task))
        finally:
            await self.terms.executor.close()
            await self._give_up_queued()

    async def _groups(self, first_version: int) -> AsyncIterator[tuple[dict[str, str], Task]]:
        """New groups as {rollout id: group id}, each with its task, as places and limits allow."""
        started = 0
        for number, task in enumerate(self._tasks):
            if self.plan.limit is not None and number >= self.plan.limit:
                return
            if self.plan.rollouts is not None and started >= self.plan.rollouts:
                return
            async with self._places:  # wait until a rollout could start, so that its deadline runs from then
                if self._upstream_failures:
                    await self._await_engine()
                group = await self._admit(task, first_version)
            if group is None:
                return
            rollouts = {row["id"]: group["id"] for row in group["rollouts"]}
            started += len(rollouts)
            self._tell("group_created", group=group["id"], task=task.id, rollouts=list(rollouts))
            yield rollouts, task

    async def _admit(self, task: Task, first_version: int) -> dict[str, Any] | None:
        """Create the task's group, waiting while the trainer is behind; null once the policy has had its steps."""
        group_id = self._ids.new()
        body = {"payload": task.payload, "source": task.source}
        if task.id is not None:
            body["id"] = task.id
        waited_since: float | None = None
        while not await self._steps_done(first_version):
            try:
                group = await self._create_group(group_id, body)
            except AdmissionRefused as refusal:
                if waited_since is None:
                    waited_since = time.monotonic()
                    self._tell("admission_wait", reason=str(refusal))
                await asyncio.sleep(refusal.retry_after)
                continue
            if waited_since is not None:
                self._tell("admission_over", waited_s=time.monotonic() - waited_since)
            return group
        return None

    async def _create_group(self, group_id: str, task: dict[str, Any]) -> dict[str, Any]:
        """Create a group. A run that is cancelled meanwhile still learns of its rollouts, so as to give them up."""
        request = asyncio.create_task(
            self.terms.client.create_group(
                group_id=group_id,
                policy=self.plan.policy,
                task=task,
                purpose=self.plan.purpose,
                deadline_s=self.plan.deadline_s,
                size=self.plan.group_size,
            )
        )
        try:
            group = await asyncio.shield(request)
        except asyncio.CancelledError:
            with contextlib.suppress(ControlPlaneError, TimeoutError):
                async with asyncio.timeout(STOP_WAIT_S):
                    self._queued |= {row["id"] for row in (await request)["rollouts"]}
            raise
        self._queued |= {row["id"] for row in group["rollouts"]}
        return group

    async def _steps_done(self, first_version: int) -> bool:
        if self.plan.steps is None:
            return False
        policy = await self.terms.client.policy(self.plan.policy)
        return policy["version"] - first_version >= self.plan.steps

    async def _one(self, rollout_id: str, group_id: str, task: Task) -> None:
        """Run one rollout and count it; its place is free again afterwards."""
        try:
            self._queued.discard(rollout_id)
            result = await run_rollout(self.terms, rollout_id, group_id, task)
            self.totals.add(result)
            self._tell(
                "rollout_ended",
                rollout=rollout_id,
                group=group_id,
                task=task.id,
                state=result.state,
                reward=result.reward,
                rewards=result.rewards,
                failure=result.failure,
                error=result.error,
                duration_s=round(result.duration_s, 3),
            )
            self._watch_upstream(result)
        finally:
            self._places.release()

    def _watch_upstream(self, result: Result) -> None:
        """End a run whose every model call fails, rather than burn through all its tasks."""
        self._upstream_failures = self._upstream_failures + 1 if result.failure == "upstream" else 0
        if self._upstream_failures >= max(20, 3 * self.plan.concurrency):
            raise ControlPlaneError(
                f"the last {self._upstream_failures} rollouts got no answer from the model ({result.error}); "
                f"look at {self.terms.client.url}/api/engines"
            )

    async def _await_engine(self) -> None:
        """Wait until an engine of the policy takes traffic. Raises ``ControlPlaneError`` if none is registered."""
        give_up_at = time.monotonic() + self.plan.engine_wait_s
        told = False
        while True:
            engines = [
                row for row in await self.terms.client.engines() if engine_policy(row) == self.plan.policy
            ]
            if any(row["state"] in ("ready", "swapping") for row in engines):
                return
            states = ", ".join(f"{row['id']}: {row['state']}" for row in engines) or "none is registered"
            if not engines or time.monotonic() >= give_up_at:
                raise ControlPlaneError(
                    f"no engine serves policy {self.plan.policy!r} ({states}); "
                    "start one with `singletree engine start MODEL --register URL --policy NAME`"
                )
            if not told:
                self._tell("engine_wait", engines=states)
                told = True
            await asyncio.sleep(ENGINE_POLL_S)

    async def _give_up_queued(self) -> None:
        """Rollouts that will never be claimed end now, so that their groups settle now; best effort."""
        with contextlib.suppress(ControlPlaneError, TimeoutError):
            async with asyncio.timeout(STOP_WAIT_S):
                for rollout_id in list(self._queued):
                    with contextlib.suppress(Conflict, NotFound):  # its group's deadline was faster
                        await self.terms.client.finish(
                            rollout_id, state="failed", error="the runner was stopped"
                        )
                    self._queued.discard(rollout_id)

    def _tell(self, event: str, **fields: Any) -> None:
        for observer in self._observers:
            observer.event(event, **fields)


def engine_policy(row: dict[str, Any]) -> str | None:
    """The policy that an engine serves."""
    return row.get("policy", row.get("policy_id"))


def first_cause(error: BaseException) -> BaseException:
    """The first exception inside task-group wrappers."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
