"""How long an engine may be silent within one call, and how long its caller may hear nothing.

One timer per call, which is not touched by what arrives: when it fires, it looks how long the silence has lasted. Time in
which the engine's weights were swapped is no silence of the engine's: requests wait by design, and none may fail because
of a swap.
"""

from __future__ import annotations

import asyncio
import time
from types import TracebackType

from proxy.engine.pool import EngineView
from proxy.outlet import Outlet
from proxy.settings import Settings

_SOONEST_S = 0.01
"""A timer that fires a little early must not spin."""


class Patience:
    """An async block for waiting on one engine, entered as often as needed in the course of one try.

    It ends with TimeoutError when the engine was silent too long: ``upstream_first_s`` until ``heard`` is called first,
    ``upstream_idle_s`` since the last call from then on. ``out``, for a stream: its caller gets a comment after each
    ``keep_alive_s`` in which nothing was sent.
    """

    __slots__ = ("_engine", "_heard_at", "_limit", "_out", "_settings", "_swapped", "_timeout", "_timer")

    def __init__(self, engine: EngineView, settings: Settings, out: Outlet | None) -> None:
        self._engine = engine
        self._settings = settings
        self._out = out
        self._timer: asyncio.TimerHandle | None = None
        self.heard()
        self._limit = settings.upstream_first_s

    def heard(self) -> None:
        """Something came from the engine."""
        self._heard_at = time.monotonic()
        self._swapped = self._engine.swaps.read(self._heard_at)
        self._limit = self._settings.upstream_idle_s

    async def __aenter__(self) -> None:
        self._timeout = asyncio.timeout(None)
        await self._timeout.__aenter__()
        self._watch()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        if self._timer is not None:
            self._timer.cancel()
        return await self._timeout.__aexit__(kind, error, trace)

    def _watch(self) -> None:
        """Looks, acts, and sets the timer for when there may be something to do next."""
        loop, now = asyncio.get_running_loop(), time.monotonic()
        if self._out is not None and self._out.sending:
            self.heard()
        swapped = self._engine.swaps.read(now) - self._swapped
        left = self._limit - (now - self._heard_at - swapped)
        if left <= 0:
            self._timeout.reschedule(loop.time())
            return
        if self._out is not None:
            quiet = now - self._out.quiet_since
            if quiet >= self._settings.keep_alive_s:
                self._out.keep_alive()
                quiet = 0.0
            left = min(left, self._settings.keep_alive_s - quiet)
        self._timer = loop.call_later(max(left, _SOONEST_S), self._watch)
