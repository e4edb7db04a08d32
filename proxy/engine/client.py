"""HTTP to the engines: one aiohttp session for calls, one for health checks.

A restarted vLLM serves its base weights and calls itself healthy. It cannot answer on a connection that was opened
before the restart, so checking the weight label whenever a new connection is opened keeps every call on the weights
that the span log names [I2].
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import aiohttp
import orjson

from proxy import upstream
from proxy.engine.pool import EngineView
from proxy.errors import UpstreamFailed
from proxy.settings import Settings

RENDER_PATH = "/v1/chat/completions/render"

CHECK_TIMEOUT_S = 10.0
"""For health and label: an engine that shares its cores can answer late."""
KEEP_ALIVE_S = 60.0
"""How long idle connections are kept; an engine that closes them sooner costs a retry."""


class EngineClient:
    """``verify`` is awaited before each new connection to an engine and raises to forbid it."""

    def __init__(self, settings: Settings, verify: Callable[[EngineView], Awaitable[None]]) -> None:
        self._verify = verify
        key = settings.engine_key
        self._auth = {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}
        self._headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", **self._auth}
        self._connect_only = aiohttp.ClientTimeout(total=None, sock_connect=settings.upstream_connect_s)
        self._limits = aiohttp.ClientTimeout(
            total=None, sock_connect=settings.upstream_connect_s, sock_read=settings.upstream_first_s
        )
        trace = aiohttp.TraceConfig()
        trace.on_connection_create_start.append(self._before_connecting)
        self._calls = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEP_ALIVE_S),
            trace_configs=[trace],
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        self._checks = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=CHECK_TIMEOUT_S),
            headers=self._auth,
            cookie_jar=aiohttp.DummyCookieJar(),
        )

    async def post(
        self, engine: EngineView, path: str, body: bytes, *, waits: bool
    ) -> aiohttp.ClientResponse:
        """Sends a call; returns when the headers are there. Raises aiohttp.ClientError.

        ``waits``: the caller keeps the time (``proxy.patience``); else a silence of ``upstream_first_s`` ends the call.
        """
        return await self._calls.post(
            engine.base_url + path,
            data=body,
            headers=self._headers,
            allow_redirects=False,
            trace_request_ctx=engine,
            timeout=self._connect_only if waits else self._limits,
        )

    async def render(self, engine: EngineView, request: dict[str, Any], **fields: Any) -> list[int]:
        """The prompt tokens of a chat request, as the engine would sample from them (vLLM only).

        ``fields`` replace those of ``request``, e.g. ``add_generation_prompt=False``. ``model`` must be the engine's
        name for it. Raises UpstreamFailed with the engine's status and message, e.g. 400 for an overlong prompt.
        """
        body = orjson.dumps({**request, **fields})
        async with upstream.open_call(self, engine, RENDER_PATH, body) as response:
            document = upstream.parse(await response.read())
        ids = document.get("token_ids")
        if not isinstance(ids, list):
            raise UpstreamFailed("The engine rendered a prompt without token ids.")
        return ids

    async def is_healthy(self, engine: EngineView) -> bool:
        """vLLM: /health. Others have no such route: any answer will do. Raises aiohttp.ClientError, TimeoutError."""
        path = "/health" if engine.kind == "vllm" else "/v1/models"
        async with self._checks.get(engine.base_url + path) as response:
            return response.status == 200 or engine.kind != "vllm"

    async def weight_label(self, engine: EngineView) -> str:
        """The label of the weights that the engine serves. Raises aiohttp.ClientError, TimeoutError, ValueError."""
        label = (await self._ask(engine, "/weight_info")).get("weight_version")
        if not isinstance(label, str):
            raise ValueError(f"engine {engine.id} reports no label of its weights")
        return label

    async def is_paused(self, engine: EngineView) -> bool:
        """vLLM only. Raises aiohttp.ClientError, TimeoutError, ValueError."""
        return bool((await self._ask(engine, "/is_paused")).get("is_paused"))

    async def close(self) -> None:
        await self._calls.close()
        await self._checks.close()

    async def _ask(self, engine: EngineView, path: str) -> dict[str, Any]:
        async with self._checks.get(engine.base_url + path) as response:
            response.raise_for_status()
            document = await response.json()
        if not isinstance(document, dict):
            raise ValueError(f"engine {engine.id} answers {path} with something else than an object")
        return document

    async def _before_connecting(
        self, _session: aiohttp.ClientSession, context: SimpleNamespace, _params: object
    ) -> None:
        engine: EngineView = context.trace_request_ctx
        try:
            await self._verify(engine)
        except TimeoutError as error:
            raise aiohttp.ConnectionTimeoutError("the engine did not name its weights in time") from error
