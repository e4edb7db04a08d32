"""The data plane: every path that an agent may call, each with its rollout's own key.

One table from path to dialect. Every error leaves in the shape of the dialect whose path was called, also where the key
is unknown or the path is not served.
"""

from __future__ import annotations

import time
from typing import Any

import structlog

from proxy import asgi, stored
from proxy.auth import Caller, find_secret
from proxy.dialects import chat, responses
from proxy.dialects.base import BadRequest, Dialect, Failure, Target
from proxy.errors import ClientGone, Refusal
from proxy.exchange import Exchange, Received
from proxy.services import Services
from spanlog.ids import new_id

GENERATING: dict[str, Dialect] = {
    "/v1/chat/completions": chat,
    "/v1/responses": responses,
}
"""POST paths that answer with a reply of the model."""
RESPONSES = "/v1/responses/"
"""Paths of stored responses begin with it."""

log = structlog.get_logger("proxy.calls")


def is_data_plane(path: str) -> bool:
    return path.startswith(("/v1/", "/r/"))


class DataPlane:
    """An ASGI application."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        secret, path = find_secret(scope["path"], scope["headers"])
        dialect = responses if path.startswith(RESPONSES) else GENERATING.get(path, chat)
        try:
            await self._route(secret, path, scope, receive, send)
        except Refusal as refusal:
            await _refuse(send, dialect, refusal)
        except ClientGone:
            return

    async def _route(
        self, secret: str | None, path: str, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
    ) -> None:
        keys = self._services.keys
        if dialect := GENERATING.get(path):
            _require_method(scope, "POST", path)
            await self._generate(dialect, await keys.caller(secret), scope, receive, send)
        elif path == "/v1/models" or path.startswith("/v1/models/"):
            _require_method(scope, "GET", "/v1/models")
            await self._models(await keys.caller(secret), path, send)
        elif path.startswith(RESPONSES):
            _require_method(scope, "GET", path)
            caller = await keys.caller(secret)
            body = await stored.response(
                path.removeprefix(RESPONSES), caller.rollout_id, self._services.database
            )
            await asgi.start(send, 200, asgi.JSON, (b"content-length", b"%d" % len(body)))
            await send({"type": "http.response.body", "body": body})
        else:
            served = ", ".join([*GENERATING, "/v1/models"])
            raise Refusal(404, f"No route {path}: this proxy serves {served}.", code="unknown_route")

    async def _generate(
        self, dialect: Dialect, caller: Caller, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
    ) -> None:
        started_at, started = time.time(), time.monotonic()
        services = self._services
        raw = await asgi.read_body(scope, receive, services.settings.max_body_bytes)
        target = Target(span_id=new_id("spn", started_at), created_at=started_at)
        try:
            call = dialect.decode(raw, target)
            await stored.complete(call, caller.rollout_id, services.database)
        except BadRequest as error:
            raise Refusal(error.status, str(error), param=error.param, code=error.code) from None
        try:
            exchange = Exchange(services, caller, Received(target.span_id, started_at, raw, dialect, call))
        except Exception:
            log.exception("call failed", rollout=caller.rollout_id)
            raise Refusal(500, "Internal error of the proxy: see its log.", code="internal_error") from None
        services.metrics.in_flight.inc()
        try:
            await exchange.run(receive, send)
        except Refusal as refusal:
            exchange.http_status = refusal.status
            raise
        finally:
            stream = "true" if call.stream else "false"
            services.metrics.in_flight.dec()
            services.metrics.calls.labels(stream, exchange.http_status).inc()
            services.metrics.latency.labels(stream).observe(time.monotonic() - started)

    async def _models(self, caller: Caller, path: str, send: asgi.Send) -> None:
        windows = [
            engine.capabilities.get("max_model_len")
            for engine in self._services.pool.engines.values()
            if engine.policy_id == caller.policy_id
        ]
        model: dict[str, Any] = {
            "id": caller.policy_id,
            "object": "model",
            "created": 0,
            "owned_by": "singletree",
        }
        if known := [window for window in windows if window]:
            model["max_model_len"] = min(known)
        if path == "/v1/models":
            await asgi.send_json(send, 200, {"object": "list", "data": [model]})
        else:  # one model: any name reaches the rollout's policy
            await asgi.send_json(send, 200, {**model, "id": path.removeprefix("/v1/models/")})


def _require_method(scope: asgi.Scope, method: str, path: str) -> None:
    if scope["method"] != method:
        raise Refusal(405, f"Use {method} for {path}.", code="method_not_allowed")


async def _refuse(send: asgi.Send, dialect: Dialect, refusal: Refusal) -> None:
    failure = Failure(refusal.status, refusal.message, refusal.code, refusal.param)
    extra = (
        [] if refusal.retry_after is None else [(b"retry-after", b"%d" % max(1, round(refusal.retry_after)))]
    )
    await asgi.send_json(send, refusal.status, dialect.error(failure), *extra)
