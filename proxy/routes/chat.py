"""The data plane: ``POST /v1/chat/completions`` and ``GET /v1/models`` for agents, each with its rollout's own key."""

from __future__ import annotations

import time
from typing import Any

import structlog

from proxy import asgi
from proxy.auth import Caller, find_secret
from proxy.dialects import chat
from proxy.errors import ClientGone, Refusal
from proxy.exchange import Exchange
from proxy.services import Services

log = structlog.get_logger("proxy.calls")


def is_data_plane(path: str) -> bool:
    return path.startswith(("/v1/", "/r/"))


class DataPlane:
    """An ASGI application. Every error leaves in OpenAI's shape."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        try:
            await self._route(scope, receive, send)
        except Refusal as refusal:
            await _refuse(send, refusal)
        except ClientGone:
            return

    async def _route(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        secret, path = find_secret(scope["path"], scope["headers"])
        if path == "/v1/chat/completions":
            if scope["method"] != "POST":
                raise Refusal(405, "Use POST for /v1/chat/completions.", code="method_not_allowed")
            await self._chat(await self._services.keys.caller(secret), scope, receive, send)
        elif path == "/v1/models" or path.startswith("/v1/models/"):
            if scope["method"] != "GET":
                raise Refusal(405, "Use GET for /v1/models.", code="method_not_allowed")
            await self._models(await self._services.keys.caller(secret), path, send)
        else:
            raise Refusal(
                404,
                f"No route {path}: this proxy serves /v1/chat/completions and /v1/models.",
                code="unknown_route",
            )

    async def _chat(self, caller: Caller, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        started_at, started = time.time(), time.monotonic()
        services = self._services
        raw = await asgi.read_body(scope, receive, services.settings.max_body_bytes)
        try:
            request = chat.decode_request(raw)
        except chat.BadRequest as error:
            raise Refusal(400, str(error), param=error.param, code="invalid_request") from None
        try:
            exchange = Exchange(services, caller, raw, request, started_at)
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
            stream = "true" if exchange.asked.stream else "false"
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


async def _refuse(send: asgi.Send, refusal: Refusal) -> None:
    body = chat.error_body(
        refusal.message, kind=chat.error_kind(refusal.status), code=refusal.code, param=refusal.param
    )
    extra = (
        [] if refusal.retry_after is None else [(b"retry-after", b"%d" % max(1, round(refusal.retry_after)))]
    )
    await asgi.send_json(send, refusal.status, body, *extra)
