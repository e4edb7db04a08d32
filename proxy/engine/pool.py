"""Which engine a call goes to, and whether it has to wait for one.

The database holds the truth about engines (the trainer swaps weights, operators drain); the pool is this process's
view of it, read again every second and after each change made here. A rollout stays with its engine as long as that is
not much busier than the others, for the sake of its prefix cache. Each engine takes a bounded number of this process's
calls; the rest wait in one queue per policy, first come, first served, bounded in number and time: what cannot be
served soon is told so with 429 instead of piling up. Waiting calls have asked no engine, so nothing is recorded of them
when they are refused.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from proxy.errors import Refusal
from spanlog.states import EngineState

FAILURES_UNTIL_GONE = 3
"""Health checks that fail in a row before an engine counts as not answering."""
AFFINITY_SLACK = 4
"""Calls by which a rollout's own engine may be busier than the idlest one and still be kept."""
AFFINITY_SIZE = 20_000
"""Rollouts remembered."""
RETRY_AFTER_S = 2
"""What a caller is told that found no engine or no place in the queue."""
_SERVING = (EngineState.READY, EngineState.SWAPPING)


@dataclass(frozen=True, slots=True)
class Limits:
    """See the settings of the same meaning; the defaults are for tests of the rules alone."""

    engine_calls: int = 10**9
    queue_calls: int = 0
    queue_wait_s: float = 60.0


class SwapClock:
    """How long weights have been swapped, in seconds: requests wait meanwhile, and no time-out may count it."""

    __slots__ = ("_since", "_total")

    def __init__(self) -> None:
        self._total = 0.0
        self._since: float | None = None

    def mark(self, swapping: bool, now: float) -> None:
        if swapping and self._since is None:
            self._since = now
        elif not swapping and self._since is not None:
            self._total += now - self._since
            self._since = None

    def read(self, now: float) -> float:
        return self._total + (now - self._since if self._since is not None else 0.0)


@dataclass(slots=True)
class EngineView:
    """One engine as last read from the database, with this process's calls at it."""

    id: str
    policy_id: str
    policy_version: int
    base_url: str
    kind: str
    state: str
    version: int | None
    capabilities: dict[str, Any] = field(default_factory=dict)
    in_flight: int = 0
    failures: int = 0
    """Health checks failed in a row."""
    seen_at: float = 0.0
    swaps: SwapClock = field(default_factory=SwapClock, compare=False, repr=False)
    """Monotonic."""


class _Waiter:
    """A call in a queue. ``engine`` is counted as busy from the moment on at which it is the result."""

    __slots__ = ("avoid", "engine", "rollout_id")

    def __init__(self, rollout_id: str, avoid: str | None) -> None:
        self.rollout_id = rollout_id
        self.avoid = avoid
        self.engine: asyncio.Future[EngineView] = asyncio.get_running_loop().create_future()


class Pool:
    """Belongs to one event loop."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.engines: dict[str, EngineView] = {}
        self._limits = limits or Limits()
        self._affinity: OrderedDict[str, str] = OrderedDict()
        self._queues: dict[str, dict[_Waiter, None]] = {}
        self._swaps: dict[str, SwapClock] = {}

    def replace(self, views: Iterable[EngineView]) -> None:
        """Takes the rows just read; keeps the counts of engines that it knows."""
        fresh: dict[str, EngineView] = {}
        for view in views:
            known = self.engines.get(view.id)
            if known is None or known.base_url != view.base_url:
                fresh[view.id] = view
                continue
            known.policy_id, known.policy_version, known.kind = view.policy_id, view.policy_version, view.kind
            known.state, known.version, known.capabilities = view.state, view.version, view.capabilities
            fresh[view.id] = known
        self.engines = fresh
        self._mark_swaps(time.monotonic())
        for policy_id in list(self._queues):
            self._serve_queue(policy_id)

    @asynccontextmanager
    async def use(
        self, policy_id: str, rollout_id: str, avoid: str | None = None
    ) -> AsyncIterator[EngineView]:
        """The engine for one call, counted as busy meanwhile. ``avoid``: one that just failed, taken only if
        no other has room.

        Waits while all engines have as many calls as they may. Raises Refusal: 503 where the policy has no engine that
        takes traffic, 429 where the queue is full or the wait too long.
        """
        engine = None
        if not self._queues.get(policy_id):  # nobody overtakes those who wait
            engine = self._choose(policy_id, rollout_id, avoid)
        if engine is None:
            engine = await self._wait(policy_id, rollout_id, avoid)
        else:
            engine.in_flight += 1
        try:
            yield engine
        finally:
            self._leave(engine)

    def states(self) -> list[tuple[str, str, str, int, int | None]]:
        return [(e.id, e.policy_id, e.state, e.in_flight, e.version) for e in self.engines.values()]

    def waiting(self) -> dict[str, int]:
        """Calls in the queue, by policy."""
        return {policy: len(queue) for policy, queue in self._queues.copy().items()}

    def _mark_swaps(self, now: float) -> None:
        swapping: set[str] = set()
        for engine in self.engines.values():
            engine.swaps.mark(engine.state == EngineState.SWAPPING, now)
            if engine.state == EngineState.SWAPPING:
                swapping.add(engine.policy_id)
        for policy_id in swapping | self._swaps.keys():
            self._swaps.setdefault(policy_id, SwapClock()).mark(policy_id in swapping, now)

    def _leave(self, engine: EngineView) -> None:
        engine.in_flight -= 1
        if self._queues.get(engine.policy_id):
            self._serve_queue(engine.policy_id)

    async def _wait(self, policy_id: str, rollout_id: str, avoid: str | None) -> EngineView:
        waiting = len(self._queues.get(policy_id, ()))
        if waiting >= self._limits.queue_calls:
            raise _busy(policy_id, f"{waiting} calls wait already")
        queue = self._queues.setdefault(policy_id, {})
        waiter = _Waiter(rollout_id, avoid)
        queue[waiter] = None
        try:
            await self._be_patient(policy_id, waiter.engine)
        except BaseException:  # the caller left, whether or not an engine had been found for it meanwhile
            if waiter.engine.done() and not waiter.engine.cancelled() and not waiter.engine.exception():
                self._leave(waiter.engine.result())
            raise
        finally:
            queue.pop(waiter, None)
            if not queue and self._queues.get(policy_id) is queue:
                del self._queues[policy_id]
        if not waiter.engine.done():
            raise _busy(policy_id, f"none became free within {self._limits.queue_wait_s:g} s")
        return waiter.engine.result()

    async def _be_patient(self, policy_id: str, engine: asyncio.Future[EngineView]) -> None:
        """Until an engine is found or the time is over, not counting the time of weight swaps."""
        began, limit = time.monotonic(), self._limits.queue_wait_s
        clock = self._swaps.setdefault(policy_id, SwapClock())
        swapped = clock.read(began)
        left = limit
        while left > 0 and not engine.done():
            await asyncio.wait([engine], timeout=left)
            now = time.monotonic()
            left = limit - (now - began) + (clock.read(now) - swapped)

    def _serve_queue(self, policy_id: str) -> None:
        """Gives engines with room to those who wait, in their order; tells all of them where there is none to wait for."""
        queue = self._queues.get(policy_id, {})
        for waiter in list(queue):
            try:
                engine = self._choose(policy_id, waiter.rollout_id, waiter.avoid)
            except Refusal as refusal:
                waiter.engine.set_exception(refusal)
                del queue[waiter]
                continue
            if engine is None:
                return
            engine.in_flight += 1
            waiter.engine.set_result(engine)
            del queue[waiter]

    def _choose(self, policy_id: str, rollout_id: str, avoid: str | None) -> EngineView | None:
        """None where all have as many calls as they may. Raises Refusal 503."""
        serving = [e for e in self.engines.values() if e.policy_id == policy_id and e.state in _SERVING]
        # Several proxies share the rows: one that reaches an engine keeps it ready for those that do not.
        serving = [e for e in serving if e.failures < FAILURES_UNTIL_GONE] or serving
        if not serving:
            raise Refusal(503, self._why_none(policy_id), code="no_engine", retry_after=RETRY_AFTER_S)
        serving = [e for e in serving if e.in_flight < self._limits.engine_calls]
        if not serving:
            return None
        serving = [e for e in serving if e.id != avoid] or serving
        idlest = min(serving, key=lambda e: e.in_flight)
        own = self._affinity.get(rollout_id)
        for engine in serving:
            if engine.id == own and engine.in_flight <= idlest.in_flight + AFFINITY_SLACK:
                self._affinity.move_to_end(rollout_id)
                return engine
        self._affinity[rollout_id] = idlest.id
        self._affinity.move_to_end(rollout_id)
        if len(self._affinity) > AFFINITY_SIZE:
            self._affinity.popitem(last=False)
        return idlest

    def _why_none(self, policy_id: str) -> str:
        states = [f"{e.id} is {e.state}" for e in self.engines.values() if e.policy_id == policy_id]
        if not states:
            return (
                f"Policy '{policy_id}' has no engine: start one with `singletree engine start` and register it with "
                f"PUT /api/engines/{{id}}."
            )
        return (
            f"No engine of policy '{policy_id}' takes traffic ({', '.join(sorted(states))}): a stale engine waits for "
            "the trainer to publish weights to it, a quarantined or gone one must be restarted."
        )


def _busy(policy_id: str, why: str) -> Refusal:
    return Refusal(
        429,
        f"The engines of policy '{policy_id}' are busy ({why}): try again, run fewer rollouts at once, or add engines.",
        code="engines_busy",
        retry_after=RETRY_AFTER_S,
    )
