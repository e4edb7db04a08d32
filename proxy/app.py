"""The application: control plane (FastAPI) and data plane (thin ASGI) on one port, and what runs beside them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, MutableMapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.routing import Match

from proxy import asgi
from proxy.auth import KeyRing
from proxy.capture import StallWatch
from proxy.engine.health import EngineWatch
from proxy.engine.pool import Limits, Pool
from proxy.history import Histories
from proxy.metrics import Metrics
from proxy.routes import engines, groups, health, policies, rollouts, steps
from proxy.routes.control import add_error_handlers
from proxy.routes.dataplane import DataPlane
from proxy.routes.paths import is_data_plane
from proxy.schemas import ErrorReply
from proxy.services import Services
from proxy.settings import Settings
from proxy.sweeper import run_sweeper
from spanlog.database import Database
from spanlog.writer import SpanWriter

DESCRIPTION = """Control plane of Singletree: policies, engines, groups, rollouts, rewards, train steps.

Agents speak to `/v1/chat/completions` on the same address, with the key that claiming a rollout returns."""
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]", "::1"})


def create_app(settings: Settings, database: Database) -> App:
    """The ASGI application over an open database, which stays the caller's to close. Both keys must be set."""
    control = FastAPI(
        title="Singletree",
        version="0.1.0",
        description=DESCRIPTION,
        lifespan=_lifespan,
        max_body_size=settings.max_body_bytes,
        responses={"default": {"model": ErrorReply, "description": "Refused, with the reason."}},
    )
    control.state.settings = settings
    control.state.database = database
    for module in (policies, engines, groups, rollouts, steps, health):
        control.include_router(module.router)
    add_error_handlers(control)
    return App(control, settings)


class App:
    """Sends model calls past FastAPI, whose layers would cost more than the rest of the proxy's work."""

    def __init__(self, control: FastAPI, settings: Settings) -> None:
        self.control = control
        self._max_body = settings.max_body_bytes
        self._hosts = LOOPBACK_NAMES | {settings.host.lower()} if settings.is_loopback else None

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["type"] == "http":
            if self._hosts is not None and not _names_one_of(self._hosts, scope):
                error = {
                    "message": "The Host header names another machine than this one.",
                    "code": "bad_host",
                }
                await asgi.send_json(send, 421, {"error": error})
                return
            if is_data_plane(scope["path"]) or self._is_probe(scope):
                await self.control.state.data_plane(scope, receive, send)
                return
            send = _with_shaped_413(send, self._max_body)
        await self.control(scope, receive, send)

    def _is_probe(self, scope: asgi.Scope) -> bool:
        """``HEAD`` on a path that is nobody's: Claude Code looks for ``/api/hello``, or for the bare base URL."""
        return scope["method"] == "HEAD" and not any(
            route.matches(scope)[0] != Match.NONE for route in self.control.routes
        )


def _with_shaped_413(send: asgi.Send, limit: int) -> asgi.Send:
    """FastAPI refuses a large body before any handler of ours could, in plain text."""
    replaced = False

    async def shaped(message: MutableMapping[str, Any]) -> None:
        nonlocal replaced
        if message["type"] == "http.response.start" and message["status"] == 413:
            replaced = True
            reason = f"The request body is larger than {limit} bytes."
            await asgi.send_json(send, 413, {"error": {"message": reason, "code": "body_too_large"}})
        elif not replaced:
            await send(message)

    return shaped


def _names_one_of(hosts: frozenset[str], scope: asgi.Scope) -> bool:
    """A page in a browser on this machine must not reach the proxy by a name that it had resolved to loopback."""
    for name, value in scope["headers"]:
        if name == b"host":
            host = value.decode("latin-1")
            if not host.endswith("]") and host.count(":") in (1, 3, 8):
                host = host.rpartition(":")[0]
            return host.lower() in hosts
    return True


@asynccontextmanager
async def _lifespan(control: FastAPI) -> AsyncIterator[None]:
    settings: Settings = control.state.settings
    database: Database = control.state.database
    services = _make_services(settings, database)
    control.state.services = services
    control.state.data_plane = DataPlane(services)
    services.stalls.start(services.loop)
    await services.watch.refresh()
    background = [
        asyncio.create_task(services.watch.run()),
        asyncio.create_task(run_sweeper(database, services.keys, settings)),
    ]
    try:
        yield
    finally:
        for task in background:
            task.cancel()
        await asyncio.gather(*background, return_exceptions=True)
        services.stalls.stop()
        try:
            await services.watch.close()
        finally:
            await asyncio.to_thread(services.writer.close)
            await asyncio.to_thread(services.histories.close)


def _make_services(settings: Settings, database: Database) -> Services:
    admin, runner = settings.admin_key, settings.runner_key
    limits = Limits(settings.engine_calls, settings.queue_calls, settings.queue_wait_s)
    pool, metrics, writer = Pool(limits), Metrics(), SpanWriter(database, guard_s=settings.version_guard_s)
    metrics.watch_queue(lambda: writer.queue_depth)
    metrics.watch_engines(pool.states, pool.waiting)
    return Services(
        settings=settings,
        database=database,
        writer=writer,
        keys=KeyRing(
            database,
            settings.key_cache_s,
            admin.get_secret_value() if admin else None,
            runner.get_secret_value() if runner else None,
        ),
        histories=Histories(database),
        pool=pool,
        watch=EngineWatch(database, pool, settings),
        metrics=metrics,
        loop=asyncio.get_running_loop(),
        stalls=StallWatch(settings.version_guard_s),
    )
