"""Swaps the weights of one engine: prove, pause, clock, load, stamp, clock, resume, probe.

The order is what keeps [I2] true: ``begin_at`` is committed once the pause is acknowledged, ``end_at`` before the engine
goes on. What is held at each failure:
* before the load: the engine is untouched, so it resumes and nobody notices;
* the load or the label failed: the engine never resumes (the next generation would kill it). It is quarantined, and
  what waits in it is aborted, which the proxy turns into a retryable error;
* it resumed, but the probe is wrong: what it sampled since is void, and it is quarantined;
* this process dies anywhere: the engine stays ``swapping``, and whoever takes the policy over swaps it again.
Each write re-checks the fence, so a trainer that lost the policy stops in the middle and touches nothing more.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, select, update

from spanlog import versions
from spanlog.database import Database
from spanlog.errors import FenceLost
from spanlog.locks import lock_policy
from spanlog.models import Engine
from spanlog.states import EngineState
from trainer.publish.control import EngineControl, Timeouts
from trainer.publish.errors import ControlFailed, EngineRefused, EngineSilent
from trainer.publish.weights import Weights


class SwapStatus(StrEnum):
    LOADED = "loaded"
    UNFIT = (
        "unfit"  # it does not see the folder, or serves another model; untouched, still on its former weights
    )
    SILENT = "silent"  # it does not answer; the proxy will find it gone
    RESTORED = "restored"  # it failed to load, and was brought back to the former weights
    QUARANTINED = "quarantined"


@dataclass(frozen=True)
class SwapOutcome:
    """How one engine's swap went."""

    engine_id: str
    status: SwapStatus
    seconds: float
    """From the pause to ready; 0.0 if it was never paused."""
    error: str | None = None


@dataclass(frozen=True)
class Target:
    """An engine that is to load weights."""

    id: str
    base_url: str
    state: str
    version: int | None
    """The version that its row says it serves."""
    model: str
    """The name that it serves the policy under."""


class EngineSwapper:
    """Swaps engines of one policy under one fence."""

    def __init__(
        self, database: Database, *, policy_id: str, fence: int, timeouts: Timeouts | None = None
    ) -> None:
        self._database = database
        self._policy_id = policy_id
        self._fence = fence
        self._timeouts = timeouts

    def control(self, target: Target) -> EngineControl:
        return EngineControl(target.base_url, self._timeouts)

    def swap(self, target: Target, weights: Weights) -> SwapOutcome:
        """Loads ``weights`` into the engine; every failure of the engine ends up in the outcome and in its row.

        Raises ``FenceLost`` and the database's errors; then the engine runs untouched, or stays ``swapping``.
        """
        control = self.control(target)
        try:
            if problem := weights.find_obstacle(control):
                return self._leave_alone(target, problem)
            before = None  # nothing to compare with where a trainer that died had loaded this version already
            if (
                target.version != weights.version
                and target.state == EngineState.READY
                and not control.is_paused()
                and weights.must_change(control)
            ):
                before = control.probe(target.model)
        except EngineSilent as error:
            return SwapOutcome(target.id, SwapStatus.SILENT, 0.0, str(error))
        except EngineRefused as error:
            return self._quarantine(
                target, control, f"it was unfit before version {weights.version}: {error}"
            )
        return self._swap_fit(target, control, weights, before)

    def _swap_fit(
        self, target: Target, control: EngineControl, weights: Weights, before: tuple[float, ...] | None
    ) -> SwapOutcome:
        began = time.monotonic()
        try:
            control.pause("keep")
        except ControlFailed as error:
            return self._quarantine(target, control, f"it did not pause: {error}", began)
        try:
            with self._fenced() as conn:
                swap_id = versions.begin_swap(conn, target.id, weights.version)
        except BaseException:
            with suppress(ControlFailed):
                control.resume()
            raise
        try:
            self._load(control, weights)
        except ControlFailed as error:
            return self._quarantine(
                target, control, f"version {weights.version} did not load: {error}", began
            )
        except BaseException:
            with suppress(ControlFailed):
                control.pause("abort")
            raise
        with self._fenced() as conn:
            versions.end_swap(conn, swap_id)
        return self._resume(target, control, weights, before, swap_id, began)

    def _load(self, control: EngineControl, weights: Weights) -> None:
        """Raises ``ControlFailed`` unless the engine says that it has loaded and carries the new label."""
        control.load(weights.folder)
        control.stamp(weights.label)
        label = control.label()
        if label != weights.label:
            raise EngineRefused(f"it reports the label {label!r} after being given {weights.label!r}")

    def _resume(
        self,
        target: Target,
        control: EngineControl,
        weights: Weights,
        before: tuple[float, ...] | None,
        swap_id: str,
        began: float,
    ) -> SwapOutcome:
        try:
            control.resume()
            if control.probe(target.model) == before:
                raise EngineRefused("its logprobs are those of the former weights")
        except ControlFailed as error:
            with self._fenced() as conn:
                versions.void_swap(conn, swap_id)
            return self._quarantine(
                target, control, f"version {weights.version} failed its probe: {error}", began
            )
        with self._fenced() as conn:
            versions.resume(conn, target.id)
        return SwapOutcome(target.id, SwapStatus.LOADED, time.monotonic() - began)

    def _leave_alone(self, target: Target, problem: str) -> SwapOutcome:
        with self._fenced() as conn:
            conn.execute(update(Engine).where(Engine.id == target.id).values(error=problem))
        return SwapOutcome(target.id, SwapStatus.UNFIT, 0.0, problem)

    def _quarantine(
        self, target: Target, control: EngineControl, error: str, began: float | None = None
    ) -> SwapOutcome:
        """First no new calls, then an end for those that wait."""
        with self._fenced() as conn:
            versions.quarantine(conn, target.id, f"{error}; restart it")
        with suppress(ControlFailed):
            control.pause("abort")
        seconds = 0.0 if began is None else time.monotonic() - began
        return SwapOutcome(target.id, SwapStatus.QUARANTINED, seconds, error)

    @contextmanager
    def _fenced(self) -> Iterator[Connection]:
        """A write transaction of a trainer that still holds the policy. Raises ``FenceLost`` otherwise."""
        with self._database.begin() as conn:
            policy = lock_policy(conn, self._policy_id)
            if policy.fence != self._fence:
                raise FenceLost(f"another trainer took policy {self._policy_id} over: stop this one")
            yield conn


def read_targets(conn: Connection, policy_id: str, model: str, *conditions: object) -> list[Target]:
    """The policy's vLLM engines that meet ``conditions`` (SQL), in order of id."""
    query = select(Engine.id, Engine.base_url, Engine.state, Engine.version).where(
        Engine.policy_id == policy_id,
        Engine.kind == "vllm",
        *conditions,  # type: ignore[arg-type]
    )
    rows = conn.execute(query.order_by(Engine.id))
    return [Target(row.id, row.base_url, row.state, row.version, model) for row in rows]
