"""Runs a job by its adapter's kind: a process of its own, or a warm worker."""

from __future__ import annotations

from typing import Protocol

from harness_adapters.protocol import Adapter, Job, LibraryAdapter, Outcome, ProcessAdapter
from harness_adapters.runner.pool import WorkerPool
from harness_adapters.runner.process import run_process


class Executor(Protocol):
    """Runs rollouts of one harness."""

    async def start(self) -> None: ...

    async def run(self, job: Job) -> Outcome:
        """Run one rollout within its limit; nothing of it lives on. Failures are outcomes, not exceptions."""
        ...

    async def close(self) -> None: ...


class ProcessExecutor:
    """One process per rollout."""

    def __init__(self, adapter: ProcessAdapter) -> None:
        self._adapter = adapter

    async def start(self) -> None:
        pass

    async def run(self, job: Job) -> Outcome:
        try:
            launch = self._adapter.prepare(job)
            finished = await run_process(launch, marker=job.rollout_id, timeout_s=job.timeout_s)
            return self._adapter.collect(job, finished)
        except (OSError, ValueError) as error:
            return Outcome(failure="error", error=f"{self._adapter.name} cannot start: {error}")

    async def close(self) -> None:
        pass


def executor_for(adapter: Adapter) -> Executor:
    """The executor of an adapter's kind."""
    if isinstance(adapter, LibraryAdapter):
        return WorkerPool(adapter)
    return ProcessExecutor(adapter)
