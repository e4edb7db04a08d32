"""The data plane: what agents call, each with its rollout's own key.

Every error leaves in the shape of the dialect whose path was called, also where the key is unknown or the path is not
served. What harnesses do before they call, ``HEAD`` to see whether somebody is there and attempts at a WebSocket, is
answered at once and without a key, so that none waits or retries.
"""

from __future__ import annotations

import time

import structlog

from proxy import asgi, stored
from proxy.auth import Caller
from proxy.dialects.base import BadRequest, Dialect, Failure, Target
from proxy.errors import ClientGone, Refusal
from proxy.exchange import Exchange, Received
from proxy.routes.counting import count_tokens
from proxy.routes.models import list_models
from proxy.routes.paths import METHODS, RESPONSES, Kind, Route, find_route, served
from proxy.services import Services
from proxy.thread import thread_of
from spanlog.ids import new_id

log = structlog.get_logger("proxy.calls")


class DataPlane:
    """An ASGI application."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["method"] == "HEAD":
            await asgi.start(send, 200, asgi.JSON, (b"content-length", b"0"))
            await send({"type": "http.response.body"})
            return
        route = find_route(scope["path"], scope["query_string"], scope["headers"])
        try:
            await self._answer(route, scope, receive, send)
        except Refusal as refusal:
            await _refuse(send, route.dialect, refusal)
        except ClientGone:
            return

    async def _answer(self, route: Route, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        if scope["method"] == "GET" and _is_websocket(scope):
            raise Refusal(
                426, "This proxy speaks HTTP only: send the call as a POST.", code="websocket_not_supported"
            )
        if route.kind == Kind.UNKNOWN:
            message = f"No route {route.path}: this proxy serves {served(route)}."
            raise Refusal(404, message, code="unknown_route")
        if scope["method"] != METHODS[route.kind]:
            raise Refusal(405, f"Use {METHODS[route.kind]} for {route.path}.", code="method_not_allowed")
        caller = await self._services.keys.caller(route.secret)
        if route.kind == Kind.GENERATE:
            await self._generate(route, caller, scope, receive, send)
        elif route.kind == Kind.COUNT:
            await count_tokens(self._services, caller, route, scope, receive, send)
        elif route.kind == Kind.STORED:
            name = route.path.removeprefix(RESPONSES)
            body = await stored.response(name, caller.rollout_id, self._services.database)
            await asgi.start(send, 200, asgi.JSON, (b"content-length", b"%d" % len(body)))
            await send({"type": "http.response.body", "body": body})
        else:
            await asgi.send_json(send, 200, list_models(self._services, caller, route))

    async def _generate(
        self, route: Route, caller: Caller, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
    ) -> None:
        started_at, started = time.time(), time.monotonic()
        services = self._services
        raw = await asgi.read_body(scope, receive, services.settings.max_body_bytes)
        target = Target(span_id=new_id("spn", started_at), created_at=started_at)
        try:
            call = route.dialect.decode(raw, route.google.target(target) if route.google else target)
            await stored.complete(call, caller.rollout_id, services.database)
        except BadRequest as error:
            raise Refusal(error.status, str(error), param=error.param, code=error.code) from None
        except Refusal:
            raise
        except Exception:
            raise _internal(caller) from None
        thread = thread_of(scope["headers"])
        received = Received(target.span_id, started_at, raw, route.dialect, call, thread)
        try:
            exchange = Exchange(services, caller, received)
        except Exception:
            raise _internal(caller) from None
        services.metrics.in_flight.inc()
        try:
            await exchange.run(receive, send)
        except Refusal as refusal:
            exchange.http_status = refusal.status
            raise
        finally:
            services.metrics.in_flight.dec()
            services.metrics.count_call(call.stream, exchange.http_status, time.monotonic() - started)


def _internal(caller: Caller) -> Refusal:
    """For a fault of the proxy's own, in the shape of the caller's dialect. Within an ``except`` block."""
    log.exception("call failed", rollout=caller.rollout_id)
    return Refusal(500, "Internal error of the proxy: see its log.", code="internal_error")


def _is_websocket(scope: asgi.Scope) -> bool:
    return any(name == b"upgrade" and value.lower() == b"websocket" for name, value in scope["headers"])


async def _refuse(send: asgi.Send, dialect: Dialect, refusal: Refusal) -> None:
    failure = Failure(refusal.status, refusal.message, refusal.code, refusal.param)
    extra: list[tuple[bytes, bytes]] = []
    if refusal.retry_after is not None:
        extra.append((b"retry-after", b"%d" % max(1, round(refusal.retry_after))))
    if (
        refusal.status == 426
    ):  # RFC 9110, 15.5.22: what to upgrade to; the bytes after an attempt are not HTTP
        extra += [(b"upgrade", b"HTTP/1.1"), (b"connection", b"close")]
    await asgi.send_json(send, refusal.status, dialect.error(failure), *extra)
