"""Watches the engines: who answers, and with which weights.

``judge`` is the rule (pure); ``EngineWatch`` applies it about once a second and before each new connection. Only the
trainer moves an engine into and out of ``swapping``; an engine is ``ready`` only while the label that it reports is
the one that the span log has for it, so a restarted engine (label ``default``) takes no traffic until the trainer has
published to it again.
"""

from __future__ import annotations

import asyncio
import errno
import time
from dataclasses import dataclass, replace
from enum import Enum

import aiohttp
import structlog

from proxy.engine import store
from proxy.engine.client import EngineClient
from proxy.engine.pool import FAILURES_UNTIL_GONE, EngineView, Pool
from proxy.errors import UpstreamFailed
from proxy.settings import Settings
from spanlog.database import Database
from spanlog.errors import SpanlogError
from spanlog.states import EngineState

TOUCH_S = 10.0
"""How often ``seen_at`` is written while nothing changes."""

log = structlog.get_logger("proxy.engines")


class Health(Enum):
    """What a check found."""

    ALIVE = "alive"
    SILENT = "silent"  # no answer in time: slow, or cut off from here
    DEAD = "dead"  # refuses or cuts connections, or says itself that it does not work


@dataclass(frozen=True, slots=True)
class Verdict:
    state: EngineState
    version: int | None
    error: str | None = None


def version_of_label(label: str, policy_id: str, policy_version: int) -> int | None:
    """The version that a weight label stands for; None if it is not this policy's.

    ``default`` is what vLLM reports for the weights it was started with: version 0, as long as there is no other.
    """
    if label == "default":
        return 0 if policy_version == 0 else None
    policy, _, number = label.rpartition(":")
    return int(number) if policy == policy_id and number.isdecimal() else None


def judge(
    engine: EngineView, *, health: Health, label: str | None = None, generates: bool = True
) -> Verdict | None:
    """The state that an engine should have, given what it answers; None to leave it as it is.

    ``generates``: false for an engine that is paused, which must not become ready.
    """
    held = engine.state in (EngineState.SWAPPING, EngineState.QUARANTINED, EngineState.DRAINING)
    if health != Health.ALIVE:
        if engine.state == EngineState.GONE or engine.failures < FAILURES_UNTIL_GONE:
            return None
        if held and health == Health.SILENT:  # slow is not restarted: what was decided about it still holds
            return None
        return Verdict(EngineState.GONE, None, "does not answer: restart it")
    if held:
        return None
    verdict = _judge_weights(engine, label)
    return None if verdict is not None and verdict.state == EngineState.READY and not generates else verdict


def _judge_weights(engine: EngineView, label: str | None) -> Verdict | None:
    if engine.kind != "vllm":
        ready = engine.state == EngineState.READY and engine.version == engine.policy_version
        return None if ready else Verdict(EngineState.READY, engine.policy_version)
    served = version_of_label(label, engine.policy_id, engine.policy_version) if label is not None else None
    if engine.state == EngineState.READY and served is not None and served == engine.version:
        if served >= engine.policy_version:  # above it while a publish is under way
            return None
        return Verdict(EngineState.STALE, served, "missed a publish: the trainer publishes to it again")
    if engine.state != EngineState.READY and served is not None and served == engine.policy_version:
        return Verdict(EngineState.READY, served)
    if engine.state == EngineState.STALE and engine.version is None:
        return None
    return Verdict(
        EngineState.STALE, None, f"serves weights labelled {label!r}: the trainer must publish to it"
    )


class EngineWatch:
    def __init__(self, database: Database, pool: Pool, settings: Settings) -> None:
        self._database = database
        self._pool = pool
        self._interval = settings.engine_poll_s
        self._touched_at = 0.0
        self._checking: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.client = EngineClient(settings, self.verify)

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self.refresh()
                for engine in list(self._pool.engines.values()):
                    if engine.id not in self._checking:
                        self._checking.add(engine.id)
                        task = asyncio.create_task(self._check_in_background(engine))
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
                await self._touch()
            except SpanlogError as error:
                log.warning("engine states cannot be read or written", error=str(error))
            except Exception:  # whatever it is, the engines must be watched again
                log.exception("engine states cannot be read or written")
            await asyncio.sleep(self._interval)

    async def refresh(self) -> None:
        """Reads all engines from the database into the pool."""
        self._pool.replace(await asyncio.to_thread(self._read, None))

    async def verify(self, engine: EngineView) -> None:
        """Before a connection is opened for a call. Raises UpstreamFailed if the engine may not take it."""
        if engine.kind != "vllm":
            return
        # Label first, row second: the row is then at least as new as the label, and a publish that lies between them
        # has moved the engine to ``swapping`` or to a newer version, which the second look accepts or asks again for.
        rows: list[EngineView] = []
        label = ""
        for _ in range(3):
            label = await self.client.weight_label(engine)
            rows = await asyncio.to_thread(self._read, engine.id)
            if rows and _may_serve(rows[0], label):
                return
            await asyncio.sleep(0.05)
        if rows:
            await self._apply(rows[0], judge(rows[0], health=Health.ALIVE, label=label, generates=False))
        raise UpstreamFailed(
            f"Engine '{engine.id}' serves weights labelled '{label}', which are not the current version's: "
            "it takes no traffic until the trainer has published to it.",
            status=503,
            code="engine_stale",
        )

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.client.close()

    async def _check_in_background(self, engine: EngineView) -> None:
        try:
            await self._check(engine)
        except SpanlogError as error:
            log.warning("engine state cannot be written", engine=engine.id, error=str(error))
        except Exception:
            log.exception("engine check failed", engine=engine.id)
        finally:
            self._checking.discard(engine.id)

    async def _check(self, engine: EngineView) -> None:
        seen = replace(engine)
        label, generates = None, True
        try:
            health = Health.ALIVE if await self.client.is_healthy(engine) else Health.DEAD
            if health == Health.ALIVE and engine.kind == "vllm":
                label = await self.client.weight_label(engine)
                if engine.state != EngineState.READY:
                    generates = not await self.client.is_paused(engine)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            health = Health.SILENT if _is_unreached(error) else Health.DEAD
        engine.failures = 0 if health == Health.ALIVE else engine.failures + 1
        if health == Health.ALIVE:
            engine.seen_at = time.time()
        seen.failures = engine.failures
        await self._apply(seen, judge(seen, health=health, label=label, generates=generates))

    async def _apply(self, seen: EngineView, verdict: Verdict | None) -> None:
        if verdict is None:
            return
        values = {"state": str(verdict.state), "version": verdict.version, "error": verdict.error}
        if await asyncio.to_thread(self._change, seen, values):
            log.info("engine changed", engine=seen.id, was=seen.state, **values)
        await self.refresh()

    async def _touch(self) -> None:
        now = time.time()
        if now - self._touched_at < TOUCH_S:
            return
        self._touched_at = now
        ids = [engine.id for engine in self._pool.engines.values() if now - engine.seen_at < TOUCH_S]
        if ids:
            await asyncio.to_thread(self._write_touch, ids, now)

    def _read(self, engine_id: str | None) -> list[EngineView]:
        with self._database.read() as conn:
            return store.read_engines(conn, engine_id)

    def _change(self, seen: EngineView, values: dict[str, object]) -> bool:
        with self._database.begin() as conn:
            return store.change_engine(conn, seen, values)

    def _write_touch(self, ids: list[str], now: float) -> None:
        with self._database.begin() as conn:
            store.touch_engines(conn, ids, now)


def _is_unreached(error: Exception) -> bool:
    """A time-out, or no way to the machine. A connection that is refused or cut comes from where the engine should be."""
    no_way = isinstance(error, aiohttp.ClientConnectorError) and error.errno != errno.ECONNREFUSED
    return no_way or isinstance(error, TimeoutError)


def _may_serve(row: EngineView, label: str) -> bool:
    served = version_of_label(label, row.policy_id, row.policy_version)
    if row.state == EngineState.SWAPPING:  # old or new, as far as the load has come
        return served is not None
    return row.state == EngineState.READY and served is not None and served == row.version
