"""Which engine a call goes to.

The database holds the truth about engines (the trainer swaps weights, operators drain); the pool is this process's
view of it, read again every second and after each change made here. A rollout stays with its engine as long as that is
not much busier than the others, for the sake of its prefix cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
_SERVING = (EngineState.READY, EngineState.SWAPPING)


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


class Pool:
    def __init__(self) -> None:
        self.engines: dict[str, EngineView] = {}
        self._affinity: OrderedDict[str, str] = OrderedDict()

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

    @contextmanager
    def use(self, policy_id: str, rollout_id: str, avoid: str | None = None) -> Iterator[EngineView]:
        """The engine for one call, counted as busy meanwhile. ``avoid``: one that just failed, taken only if alone.

        Raises Refusal 503 where the policy has no engine that takes traffic.
        """
        engine = self._choose(policy_id, rollout_id, avoid)
        engine.in_flight += 1
        try:
            yield engine
        finally:
            engine.in_flight -= 1

    def states(self) -> list[tuple[str, str, str, int, int | None]]:
        return [(e.id, e.policy_id, e.state, e.in_flight, e.version) for e in self.engines.values()]

    def _choose(self, policy_id: str, rollout_id: str, avoid: str | None) -> EngineView:
        serving = [e for e in self.engines.values() if e.policy_id == policy_id and e.state in _SERVING]
        # Several proxies share the rows: one that reaches an engine keeps it ready for those that do not.
        serving = [e for e in serving if e.failures < FAILURES_UNTIL_GONE] or serving
        serving = [e for e in serving if e.id != avoid] or serving
        if not serving:
            raise Refusal(503, self._why_none(policy_id), code="no_engine", retry_after=2)
        idlest = min(serving, key=lambda e: e.in_flight)
        own = self._affinity.get(rollout_id)
        for engine in serving:
            if engine.id == own and engine.in_flight <= idlest.in_flight + AFFINITY_SLACK:
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
