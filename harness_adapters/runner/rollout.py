"""The life of one rollout: claim, run, reward, finish; and whatever happens, finish and clean up."""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import tempfile
import time
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness_adapters.client import ControlPlane
from harness_adapters.errors import Conflict, ControlPlaneError, NotFound, RewardInvalid, WorkerBroken
from harness_adapters.protocol import Endpoint, Job, Outcome, Task
from harness_adapters.rewards import RewardFunction
from harness_adapters.runner.executors import Executor
from harness_adapters.runner.process import finish_despite_cancellation

HEARTBEAT_S = 10.0
TAIL_KEPT = 2000
"""Characters of output kept with the rollout."""
STOP_WAIT_S = 5.0
"""How long a stopped runner tries to tell the proxy that its rollouts ended."""


@dataclass(frozen=True)
class Terms:
    """What is the same for all rollouts of a run."""

    client: ControlPlane
    executor: Executor
    reward: RewardFunction
    runner: str
    """Unique name of this runner process, for claims and heartbeats."""
    harness: str
    base_url: str
    """Data plane, ``/v1`` included."""
    timeout_s: float
    score_failures: frozenset[str] = frozenset()
    failure_reward: float | None = None
    template: Path | None = None
    """Folder copied into each workspace."""
    workspaces: Path | None = None
    keep_workspaces: bool = False


@dataclass
class Result:
    """What became of one rollout."""

    rollout_id: str
    group_id: str
    state: str
    """``succeeded``, ``failed``, or ``lost``: it had ended before this runner could end it."""
    rewards: dict[str, float] = field(default_factory=dict)
    failure: str | None = None
    error: str | None = None
    duration_s: float = 0.0

    @property
    def reward(self) -> float | None:
        """The one that trains; null is missing, not zero [I4]."""
        return self.rewards.get("reward")


async def run_rollout(terms: Terms, rollout_id: str, group_id: str, task: Task) -> Result:
    """Run one rollout to its end. Raises ``ControlPlaneError`` only if the proxy itself is lost.

    If it is cancelled, at whatever point, the rollout is ended all the same: with its result if it has one by then.
    """
    started = time.monotonic()
    stopped = Outcome(failure="stopped", error="the runner was stopped")
    result, outcome = Result(rollout_id, group_id, "failed", failure="stopped", error=stopped.error), stopped
    try:
        claim = await terms.client.claim(rollout_id, runner=terms.runner, harness=terms.harness)
        endpoint = Endpoint(terms.base_url, claim["key"], claim["policy"]["id"])
        outcome, rewards = await while_claimed(terms, rollout_id, attempt(terms, rollout_id, task, endpoint))
        result = Result(
            rollout_id,
            group_id,
            "succeeded" if outcome.succeeded else "failed",
            rewards=rewards,
            failure=outcome.failure,
            error=outcome.error,
            duration_s=time.monotonic() - started,
        )
        if not await finish(terms, result, outcome):
            result.state = "lost"
        return result
    except (Conflict, NotFound, EndedElsewhere) as error:
        return Result(rollout_id, group_id, "lost", failure="stopped", error=str(error))
    except asyncio.CancelledError:
        await finish_despite_cancellation(finish_within(STOP_WAIT_S, terms, result, outcome))
        raise


async def attempt(
    terms: Terms, rollout_id: str, task: Task, endpoint: Endpoint
) -> tuple[Outcome, dict[str, float]]:
    """Run the harness in a workspace and reward it while the workspace is there."""
    try:
        with workspace(terms, rollout_id) as folder:
            job = Job(rollout_id, task, endpoint, folder, folder.with_name("scratch"), terms.timeout_s)
            outcome = await terms.executor.run(job)
            outcome.workspace = folder
            return outcome, await reward_of(terms, task, outcome)
    except (ControlPlaneError, WorkerBroken):
        raise
    except Exception as error:  # an adapter, a template, a disk: this rollout's misfortune, and no other's
        return Outcome(failure="error", error=f"{type(error).__name__}: {error}"), {}


class EndedElsewhere(Exception):
    """The proxy ended the rollout while it ran: its group's deadline passed, or its heartbeats did not arrive."""


async def while_claimed(
    terms: Terms, rollout_id: str, work: Coroutine[Any, Any, tuple[Outcome, dict[str, float]]]
) -> tuple[Outcome, dict[str, float]]:
    """Do ``work`` with a heartbeat beside it; ends it, and raises ``EndedElsewhere``, once the proxy refuses those."""
    working = asyncio.create_task(work)
    beating = asyncio.create_task(beat(terms, rollout_id))
    try:
        await asyncio.wait([working, beating], return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        raise EndedElsewhere(beating.result())
    finally:
        working.cancel()
        beating.cancel()
        await finish_despite_cancellation(settled(working, beating))


async def settled(*tasks: asyncio.Task[Any]) -> None:
    """Wait until all have ended, however."""
    await asyncio.gather(*tasks, return_exceptions=True)


async def beat(terms: Terms, rollout_id: str) -> str:
    """Tell the proxy every ``HEARTBEAT_S`` seconds that the rollout lives; returns its words once it says it does not."""
    while True:
        await asyncio.sleep(HEARTBEAT_S)
        try:
            await terms.client.heartbeat(rollout_id, runner=terms.runner)
        except (Conflict, NotFound) as error:
            return str(error)
        except ControlPlaneError:
            continue  # it may come back in time


async def reward_of(terms: Terms, task: Task, outcome: Outcome) -> dict[str, float]:
    """The rollout's rewards; a failed one has none [I4] unless its kind of failure is to be scored.

    A reward function that gives no proper value turns the outcome into a failure, unrewarded.
    """
    if not outcome.succeeded:
        if outcome.failure not in terms.score_failures:
            return {}
        if terms.failure_reward is not None:
            return {"reward": terms.failure_reward}
    try:
        return await terms.reward(task, outcome)
    except RewardInvalid as error:
        outcome.failure, outcome.error = "error", str(error)
    except Exception as error:
        outcome.failure, outcome.error = "error", f"the reward failed with {type(error).__name__}: {error}"
    return {}


async def finish(terms: Terms, result: Result, outcome: Outcome) -> bool:
    """End and reward the rollout in one call; false if it had already ended otherwise (deadline, lost heartbeat)."""
    info = {
        "failure": outcome.failure,
        "exit_code": outcome.exit_code,
        "duration_s": round(result.duration_s, 3),
        "final_text": outcome.final_text[:TAIL_KEPT],
        "stdout_tail": outcome.stdout_tail[-TAIL_KEPT:] if outcome.failure else "",
        "stderr_tail": outcome.stderr_tail[-TAIL_KEPT:] if outcome.failure else "",
        "data": outcome.data,
    }
    events: list[dict[str, Any]] = [
        {
            "name": name,
            "value": value,
            "source": "runner",
            "idempotency_key": result.rollout_id if name == "reward" else f"{result.rollout_id}:{name}",
        }
        for name, value in result.rewards.items()
    ]
    try:
        await terms.client.finish(
            result.rollout_id, state=result.state, error=outcome.error, info=without_nan(info), rewards=events
        )
        return True
    except Conflict:
        # Either it had ended before, or this is the second sending of a call whose answer was lost.
        row = await terms.client.rollout(result.rollout_id)
        return row.get("state") == result.state


def without_nan(info: dict[str, Any]) -> dict[str, Any]:
    """Null for numbers that JSON does not have: what a harness reports must not cost its rollout the reward."""
    return json.loads(json.dumps(info), parse_constant=lambda _: None)


async def finish_within(seconds: float, terms: Terms, result: Result, outcome: Outcome) -> None:
    """``finish``, best effort: a runner that stops must not hang on a proxy that is gone."""
    with contextlib.suppress(ControlPlaneError, TimeoutError):
        async with asyncio.timeout(seconds):
            await finish(terms, result, outcome)


@contextlib.contextmanager
def workspace(terms: Terms, rollout_id: str) -> Iterator[Path]:
    """The rollout's own folder (``scratch`` is beside it), removed afterwards even if parts were made unwritable."""
    outer = Path(tempfile.mkdtemp(prefix=f"singletree-{rollout_id}-", dir=terms.workspaces))
    try:
        folder = outer / "work"
        folder.mkdir()
        (outer / "scratch").mkdir()
        if terms.template is not None:
            shutil.copytree(terms.template, folder, dirs_exist_ok=True, symlinks=True)
        yield folder
    finally:
        if not terms.keep_workspaces:
            remove_tree(outer)


def remove_tree(folder: Path) -> None:
    """Delete a folder; where that is refused, make it writable and try once more, then leave it."""
    shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        for path in [folder, *folder.rglob("*")]:
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(OSError):
                    path.chmod(0o700)
        shutil.rmtree(folder, ignore_errors=True)
