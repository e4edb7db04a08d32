"""Warm workers for library harnesses: started once, kept for the whole run, replaced when one hangs or dies."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import sys
import time
from collections import deque
from dataclasses import asdict, fields
from typing import Any

from harness_adapters.environment import clean_environment
from harness_adapters.errors import WorkerBroken
from harness_adapters.protocol import Job, LibraryAdapter, Outcome, ToolCall
from harness_adapters.runner.process import MARKER, end_process, finish_despite_cancellation
from harness_adapters.runner.worker import LINE_LIMIT

START_TIMEOUT_S = 120.0
"""Importing a large agent library on a busy machine takes tens of seconds."""
CANCEL_WAIT_S = 15.0
"""How long a worker may take to end one rollout before it counts as hanging and is killed with all that it runs; long,
since on a busy machine a healthy one can be slow."""
STDERR_LINES = 50


class WorkerLost(Exception):
    """The worker ended while it had rollouts; each of them fails, unrewarded."""


class WorkerProcess:
    """One worker and the rollouts it is running."""

    def __init__(self, process: asyncio.subprocess.Process, marker: str) -> None:
        self._process = process
        self._marker = marker
        self._waiting: dict[str, asyncio.Future[dict[str, Any]]] = {}
        self._started: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)
        self._tasks = [asyncio.create_task(self._read_replies()), asyncio.create_task(self._read_stderr())]
        self.alive = True

    @classmethod
    async def start(cls, spec: dict[str, Any]) -> WorkerProcess:
        """Start a worker and wait until its agent is loaded. Raises ``WorkerBroken`` with the worker's own words."""
        marker = f"worker-{secrets.token_hex(8)}"
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "harness_adapters.runner.worker",
            env={**clean_environment(), MARKER: marker},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_LIMIT,
            start_new_session=True,
        )
        worker = cls(process, marker)
        try:
            worker._send({"op": "start", "spec": spec})
            async with asyncio.timeout(START_TIMEOUT_S):
                await worker._started
        except TimeoutError:
            await finish_despite_cancellation(worker.kill())
            raise WorkerBroken(
                f"the worker was not ready after {START_TIMEOUT_S:.0f} s: {worker.last_words}"
            ) from None
        except BaseException:
            await finish_despite_cancellation(worker.kill())
            raise
        return worker

    @property
    def load(self) -> int:
        return len(self._waiting)

    @property
    def last_words(self) -> str:
        """The last line that it wrote to standard error."""
        return next((line for line in reversed(self._stderr) if line), "it said nothing")

    async def run(self, job: Job) -> dict[str, Any]:
        """Run one rollout; cancelling this cancels it in the worker. Raises ``WorkerLost``."""
        if not self.alive:
            raise WorkerLost(f"the worker process ended: {self.last_words}")
        done: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[job.rollout_id] = done
        self._send(
            {"op": "run", "id": job.rollout_id, "task": job.task.payload, "endpoint": asdict(job.endpoint)},
        )
        try:
            return await asyncio.shield(done)
        except asyncio.CancelledError:
            await finish_despite_cancellation(self._cancel(job.rollout_id, done))
            raise

    async def _cancel(self, rollout_id: str, done: asyncio.Future[dict[str, Any]]) -> None:
        """Ask the worker to stop one rollout; if it does not answer, its loop or a tool hangs, and it is killed."""
        if self.alive and not done.done():
            self._send({"op": "cancel", "id": rollout_id})
            await asyncio.wait([done], timeout=CANCEL_WAIT_S)
        if not done.done():
            await self.kill()
        if done.done() and not done.cancelled():
            done.exception()  # seen: asyncio must not warn about it

    async def kill(self) -> None:
        """End the process and all that it started; its rollouts raise ``WorkerLost``."""
        self.alive = False
        if self._process.stdin is not None:
            self._process.stdin.close()
        await end_process(self._process, self._marker)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._lose(f"the worker process was ended: {self.last_words}")

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._process.stdin.write((json.dumps(message) + "\n").encode())

    async def _read_replies(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            message = json.loads(line)
            if message["op"] == "ready":
                self._started.set_result(None)
            elif message["op"] == "broken":
                self._started.set_exception(WorkerBroken(message["error"]))
            elif (done := self._waiting.pop(message["id"], None)) is not None and not done.done():
                done.set_result(message["outcome"])
        self.alive = False
        await asyncio.sleep(0.1)  # let the last lines of standard error come in
        self._lose(f"the worker process ended: {self.last_words}")

    async def _read_stderr(self) -> None:
        assert self._process.stderr is not None
        while line := await self._process.stderr.readline():
            self._stderr.append(line.decode(errors="replace").strip())

    def _lose(self, why: str) -> None:
        if not self._started.done():
            self._started.set_exception(WorkerBroken(why))
            self._started.exception()  # whoever waits still gets it; if nobody does, asyncio must not warn
        for done in self._waiting.values():
            if not done.done():
                done.set_exception(WorkerLost(why))
        self._waiting.clear()


class WorkerPool:
    """Runs the rollouts of a library harness; the least loaded worker gets the next one."""

    def __init__(self, adapter: LibraryAdapter) -> None:
        self._adapter = adapter
        self._workers: list[WorkerProcess] = []
        self._starting = asyncio.Lock()

    async def start(self) -> None:
        """Start all workers, so that a broken agent is refused before any rollout. Raises ``WorkerBroken``."""
        while len(self._workers) < self._adapter.workers:
            self._workers.append(await WorkerProcess.start(self._adapter.worker_spec()))

    async def run(self, job: Job) -> Outcome:
        """Run one rollout within its limit."""
        started = time.monotonic()
        try:
            async with asyncio.timeout(job.timeout_s):
                worker = await self._pick()
                outcome = outcome_from(await worker.run(job))
        except TimeoutError:
            outcome = Outcome(failure="timeout", error=f"no answer after {job.timeout_s:g} s")
        except WorkerLost as error:
            outcome = Outcome(failure="error", error=str(error))
        outcome.duration_s = time.monotonic() - started
        return outcome

    async def close(self) -> None:
        """End all workers."""
        workers, self._workers = self._workers, []
        await asyncio.gather(*(worker.kill() for worker in workers))

    async def _pick(self) -> WorkerProcess:
        async with self._starting:
            self._workers = [worker for worker in self._workers if worker.alive]
            await self.start()
            return min(self._workers, key=lambda worker: worker.load)


def outcome_from(reply: dict[str, Any]) -> Outcome:
    """The ``Outcome`` that a worker's JSON describes; fields that it has no name for are dropped."""
    known = {field.name for field in fields(Outcome)} - {"workspace", "tool_calls"}
    calls = [ToolCall(**call) for call in reply.get("tool_calls", [])]
    return Outcome(**{name: value for name, value in reply.items() if name in known}, tool_calls=calls)
