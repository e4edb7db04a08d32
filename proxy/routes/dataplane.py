"""The data plane: every path that an agent may call, each with its rollout's own key.

One table from path to dialect. Every error leaves in the shape of the dialect whose path was called, also where the key
is unknown or the path is not served. What harnesses do before they call, ``HEAD`` to see whether somebody is there and
attempts at a WebSocket, is answered at once and without a key, so that none waits or retries.
"""

from __future__ import annotations

import time
from typing import Any

import structlog

from proxy import asgi
from proxy.auth import Caller, find_secret
<<<<<<< HEAD
from proxy.dialects import chat, messages
=======
from proxy.dialects import chat, completions, gemini
>>>>>>> h-gemini
from proxy.dialects.base import BadRequest, Dialect, Failure, Target
from proxy.dialects.gemini import paths as gemini_paths
from proxy.dialects.gemini.paths import GeminiPath
from proxy.errors import ClientGone, Refusal
from proxy.exchange import Exchange, Received
<<<<<<< HEAD
from proxy.routes.counting import count_tokens
=======
from proxy.routes import gemini as gemini_routes
>>>>>>> h-gemini
from proxy.services import Services
from spanlog.ids import new_id

GENERATING: dict[str, Dialect] = {
    "/v1/chat/completions": chat,
<<<<<<< HEAD
    "/v1/messages": messages,
}
"""POST paths that answer with a reply of the model."""
COUNT_TOKENS = "/v1/messages/count_tokens"
MODELS = "/v1/models"
=======
    "/v1/completions": completions,
}
"""POST paths that answer with a reply of the model. Gemini's name model and method: see ``gemini.paths``."""
>>>>>>> h-gemini

log = structlog.get_logger("proxy.calls")


def is_data_plane(path: str) -> bool:
<<<<<<< HEAD
    return path.startswith(("/v1/", "/r/")) or normal_path(path) != path


def normal_path(path: str) -> str:
    """Some clients add ``/v1`` to their base URL and some want it there: both kinds of URL work with both."""
    while path.startswith("/v1/v1/"):
        path = path[3:]
    return f"/v1{path}" if _is_served(f"/v1{path}") else path


def _is_served(path: str) -> bool:
    return path in GENERATING or path in (COUNT_TOKENS, MODELS) or path.startswith(f"{MODELS}/")
=======
    return path.startswith(("/v1/", "/v1beta/", "/r/"))
>>>>>>> h-gemini


class DataPlane:
    """An ASGI application."""

    def __init__(self, services: Services) -> None:
        self._services = services

    async def __call__(self, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send) -> None:
        secret, path = find_secret(scope["path"], scope["headers"])
<<<<<<< HEAD
        path = normal_path(path)
        if scope["method"] == "HEAD":
            await asgi.start(send, 200, asgi.JSON, (b"content-length", b"0"))
            await send({"type": "http.response.body"})
            return
=======
        google = gemini_paths.read(path, scope["query_string"])
        dialect = gemini if google else GENERATING.get(path, chat)
>>>>>>> h-gemini
        try:
            if google:
                await self._route_gemini(secret or google.key, path, google, scope, receive, send)
            else:
                await self._route(secret, path, scope, receive, send)
        except Refusal as refusal:
            await _refuse(send, _dialect_of(path, scope), refusal)
        except ClientGone:
            return

    async def _route(
        self, secret: str | None, path: str, scope: asgi.Scope, receive: asgi.Receive, send: asgi.Send
    ) -> None:
        keys = self._services.keys
        if scope["method"] == "GET" and _header(scope, b"upgrade").lower() == b"websocket":
            raise Refusal(
                426, "This proxy speaks HTTP only: send the call as a POST.", code="websocket_not_supported"
            )
        if dialect := GENERATING.get(path):
            _require_method(scope, "POST", path)
            await self._generate(dialect, await keys.caller(secret), scope, receive, send)
        elif path == COUNT_TOKENS:
            _require_method(scope, "POST", path)
            await count_tokens(self._services, await keys.caller(secret), scope, receive, send)
        elif path == MODELS or path.startswith(f"{MODELS}/"):
            _require_method(scope, "GET", MODELS)
            await self._models(await keys.caller(secret), path, scope, send)
        else:
            served = ", ".join([*GENERATING, COUNT_TOKENS, MODELS])
            raise Refusal(404, f"No route {path}: this proxy serves {served}.", code="unknown_route")

    async def _route_gemini(
        self,
        secret: str | None,
        path: str,
        google: GeminiPath,
        scope: asgi.Scope,
        receive: asgi.Receive,
        send: asgi.Send,
    ) -> None:
        if not google.known:
            served = "models, and generateContent, streamGenerateContent and countTokens of a model"
            raise Refusal(404, f"No route {path}: this proxy serves {served}.", code="unknown_route")
        _require_method(scope, "GET" if google.method is None else "POST", path)
        caller = await self._services.keys.caller(secret)
        if google.method is None:
            await gemini_routes.send_models(self._services, caller, google, send)
        elif google.method == "countTokens":
            await gemini_routes.count_tokens(self._services, caller, google, scope, receive, send)
        else:
            await self._generate(gemini, caller, scope, receive, send, google)

    async def _generate(
        self,
        dialect: Dialect,
        caller: Caller,
        scope: asgi.Scope,
        receive: asgi.Receive,
        send: asgi.Send,
        google: GeminiPath | None = None,
    ) -> None:
        started_at, started = time.time(), time.monotonic()
        services = self._services
        raw = await asgi.read_body(scope, receive, services.settings.max_body_bytes)
        target = Target(span_id=new_id("spn", started_at), created_at=started_at)
        if google:
            target = google.target(target)
        try:
            call = dialect.decode(raw, target)
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

    async def _models(self, caller: Caller, path: str, scope: asgi.Scope, send: asgi.Send) -> None:
        windows = [
            engine.capabilities.get("max_model_len")
            for engine in self._services.pool.engines.values()
            if engine.policy_id == caller.policy_id
        ]
        known = [window for window in windows if window]
        # Any name reaches the rollout's policy.
        one = path.removeprefix(f"{MODELS}/") if path != MODELS else None
        if _header(scope, b"anthropic-version"):
            info = messages.model_info(one or caller.policy_id, min(known, default=None))
            await asgi.send_json(send, 200, info if one else messages.model_list([info]))
            return
        model: dict[str, Any] = {
            "id": one or caller.policy_id,
            "object": "model",
            "created": 0,
            "owned_by": "singletree",
        }
        if known:
            model["max_model_len"] = min(known)
        await asgi.send_json(send, 200, model if one else {"object": "list", "data": [model]})


def _dialect_of(path: str, scope: asgi.Scope) -> Dialect:
    """Whose errors a caller understands."""
    if dialect := GENERATING.get(path):
        return dialect
    return messages if path == COUNT_TOKENS or _header(scope, b"anthropic-version") else chat


def _header(scope: asgi.Scope, wanted: bytes) -> bytes:
    return next((value for name, value in scope["headers"] if name == wanted), b"")


def _require_method(scope: asgi.Scope, method: str, path: str) -> None:
    if scope["method"] != method:
        raise Refusal(405, f"Use {method} for {path}.", code="method_not_allowed")


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
