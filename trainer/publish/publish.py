"""Publishing a version: every engine swaps, one after the other, and the version counts once at least one serves it.

Promise: no request on a healthy engine fails because of a swap. Validation comes before any engine is touched; the
commit is a compare-and-swap that re-checks the fence [I6]; a trainer that dies in the middle leaves engines
``swapping``, which ``republish_stale`` of the next trainer brings back.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, or_, select

from spanlog import policies, steps
from spanlog.database import Database
from spanlog.errors import Conflict
from spanlog.models import Engine, TrainStep
from spanlog.states import EngineState
from trainer.publish.control import Timeouts
from trainer.publish.errors import ControlFailed, NoEngine, PublishFailed
from trainer.publish.swap import EngineSwapper, SwapOutcome, SwapStatus, Target, read_targets
from trainer.publish.validate import shapes_of, validate_weights
from trainer.publish.weights import Weights

REACHABLE = (EngineState.READY, EngineState.STALE, EngineState.SWAPPING)
"""States whose engines take part; draining, quarantined and gone ones do not."""
PROXY_NOTICES_S = 2.0
"""Proxies read engine states every second: until then a call may still reach a quarantined engine, and wait in it."""


@dataclass(frozen=True)
class PublishReport:
    """What a publish did."""

    version: int
    engines: tuple[SwapOutcome, ...]
    seconds: float
    """All of it: validation, swaps and commit."""

    @property
    def loaded(self) -> int:
        """How many engines serve it."""
        return sum(outcome.status == SwapStatus.LOADED for outcome in self.engines)


def publish(
    database: Database,
    *,
    policy_id: str,
    fence: int,
    expected_version: int,
    path: Path,
    step_id: str | None,
    version: int | None = None,
    timeouts: Timeouts | None = None,
) -> PublishReport:
    """Brings the weights in ``path`` to the policy's engines and makes them its version.

    ``expected_version`` is the one published now; its tensors are what ``path`` must have too. ``version`` defaults to
    the step's, else to the next free one.

    Raises ``WeightsInvalid`` (nothing touched), ``NoEngine`` (nothing touched), ``PublishFailed`` (no engine loaded it;
    the former weights are loaded again where possible), ``FenceLost``, ``Conflict``.
    """
    began = time.monotonic()
    path = path.absolute()
    with database.read() as conn:
        recorded = _folder_of(conn, policy_id, expected_version)
    former = recorded if recorded is not None and recorded.is_dir() else None
    gone = recorded is not None and former is None
    validate_weights(path, shapes_of(former or path))
    with database.begin() as conn:
        policy = _check_version(conn, policy_id, expected_version)
        version = version or _version_of(conn, policy_id, step_id)
        targets = read_targets(conn, policy_id, policy.model, Engine.state.in_(REACHABLE))
        if not targets:
            raise NoEngine(_why_no_engine(conn, policy_id))
        steps.stage_version(conn, policy_id, fence, version, str(path), step_id, time.time())
    swapper = EngineSwapper(database, policy_id=policy_id, fence=fence, timeouts=timeouts)
    outcomes = _swap_all(swapper, targets, Weights(policy_id, version, path, former))
    if not any(outcome.status == SwapStatus.LOADED for outcome in outcomes):
        with database.begin() as conn:
            steps.fail_version(conn, policy_id, fence, version)
        why = f"no engine loaded version {version} of {policy_id}: {_errors(outcomes)}"
        if not gone:  # without its folder, "the former weights" would be those the engines started with
            outcomes = _restore(swapper, targets, outcomes, Weights(policy_id, expected_version, former))
        _abort_latecomers(swapper, targets, outcomes)
        raise PublishFailed(why)
    with database.begin() as conn:
        steps.publish_version(
            conn, policy_id, fence, expected_version, version, str(path), step_id, time.time()
        )
    _abort_latecomers(swapper, targets, outcomes)
    return PublishReport(version, tuple(outcomes), time.monotonic() - began)


def republish_stale(
    database: Database, *, policy_id: str, fence: int, timeouts: Timeouts | None = None
) -> list[SwapOutcome]:
    """Loads the published weights into engines of the policy that do not serve them: restarted, newly registered, left
    in the middle of a swap by a trainer that died, or serving a version that one never committed.

    Cheap when there are none; call it while waiting. An engine that fails is quarantined and reported. Raises
    ``FenceLost``, ``PublishFailed`` (the weights are not on disk) and the database's errors.
    """
    with database.read() as conn:
        policy = policies.get(conn, policy_id)
        waiting = Engine.state.in_((EngineState.STALE, EngineState.SWAPPING))
        other = (Engine.state == EngineState.READY) & (Engine.version != policy.version)
        targets = read_targets(conn, policy_id, policy.model, or_(waiting, other))
        folder = _folder_of(conn, policy_id, policy.version)
    if not targets:
        return []
    if folder is not None and not folder.is_dir():
        raise PublishFailed(
            f"the weights of version {policy.version} of {policy_id} are gone from {folder}; put them back"
        )
    swapper = EngineSwapper(database, policy_id=policy_id, fence=fence, timeouts=timeouts)
    strangers = [replace(target, state=EngineState.STALE) for target in targets]
    outcomes = _swap_all(swapper, strangers, Weights(policy_id, policy.version, folder))
    _abort_latecomers(swapper, targets, outcomes)
    return outcomes


def _swap_all(swapper: EngineSwapper, targets: list[Target], weights: Weights) -> list[SwapOutcome]:
    """One after the other, so that the others answer meanwhile."""
    with weights.proven():
        return [swapper.swap(target, weights) for target in targets]


def _restore(
    swapper: EngineSwapper, targets: list[Target], outcomes: list[SwapOutcome], former: Weights
) -> list[SwapOutcome]:
    """Loads the former weights into the engines that failed; returns the outcomes with those that came back renamed."""
    failed = {outcome.engine_id for outcome in outcomes if outcome.status == SwapStatus.QUARANTINED}
    again = [replace(target, state=EngineState.QUARANTINED) for target in targets if target.id in failed]
    loaded = {
        outcome.engine_id
        for outcome in _swap_all(swapper, again, former)
        if outcome.status == SwapStatus.LOADED
    }
    return [
        replace(outcome, status=SwapStatus.RESTORED) if outcome.engine_id in loaded else outcome
        for outcome in outcomes
    ]


def _abort_latecomers(swapper: EngineSwapper, targets: list[Target], outcomes: list[SwapOutcome]) -> None:
    """Ends the calls that reached a quarantined engine before the proxies had heard; they would wait for ever."""
    lost = {outcome.engine_id for outcome in outcomes if outcome.status == SwapStatus.QUARANTINED}
    if not lost:
        return
    time.sleep(PROXY_NOTICES_S)
    for target in targets:
        if target.id in lost:
            try:
                swapper.control(target).pause("abort")
            except ControlFailed:
                continue


def _check_version(conn: Connection, policy_id: str, expected: int) -> Row[Any]:
    policy = policies.get(conn, policy_id)
    if policy.version != expected:
        raise Conflict(
            f"policy {policy_id} is at version {policy.version}, not {expected}: another trainer published"
        )
    return policy


def _version_of(conn: Connection, policy_id: str, step_id: str | None) -> int:
    if step_id is not None:
        found = conn.execute(select(TrainStep.version).where(TrainStep.id == step_id)).scalar_one_or_none()
        if found is not None:
            return found
    return steps.next_version(conn, policy_id)


def _folder_of(conn: Connection, policy_id: str, version: int) -> Path | None:
    """Where the weights of a published version are; null for those that engines start with."""
    row = steps.read_version(conn, policy_id, version)
    return Path(row.path) if row is not None and row.path is not None else None


def _why_no_engine(conn: Connection, policy_id: str) -> str:
    rows = conn.execute(
        select(Engine.id, Engine.state).where(Engine.policy_id == policy_id).order_by(Engine.id)
    ).all()
    if not rows:
        return f"policy {policy_id} has no engine; start one with `singletree engine start --register`"
    states = ", ".join(f"{row.id} is {row.state}" for row in rows)
    return f"no engine of policy {policy_id} can take weights ({states}); restart one"


def _errors(outcomes: list[SwapOutcome]) -> str:
    return "; ".join(f"{outcome.engine_id}: {outcome.error}" for outcome in outcomes)
