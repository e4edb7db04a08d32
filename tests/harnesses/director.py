"""Makes a random model act: a relay between the proxy and vLLM that tells the model what to say.

A harness goes on only if the model calls its tools and at last answers, which a random model never does. So the proxy
is given this relay as its engine. It passes every request and reply through byte for byte, except that a chat request
gets ``structured_outputs`` with the one text that the script has for it. vLLM samples each token itself under that
grammar: the tokens are one of the many ways to spell the text, rarely the one that the tokenizer would choose, their
logprobs are those of the sampling, and parsers, streams and token histories are all real.

Because the proxy never sees the constraint, it marks the spans trainable. For these tests that is wanted: they are the
spans that a model which acts by itself would leave.
"""

from __future__ import annotations

import asyncio
import threading
import uuid
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
from aiohttp import web

from tests.harnesses.script import Line, Script

CHAT = "/v1/chat/completions"
MARKUP_BIAS = {"151667": 100, "151668": 100, "151657": 100, "151658": 100}
"""Qwen3's ids for ``<think>``, ``</think>``, ``<tool_call>``, ``</tool_call>``: vLLM's streaming parsers look for the ids,
so where the grammar allows the whole tag it is not spelled in pieces. Elsewhere the grammar still masks them."""
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "host", "content-length"})


@dataclass
class Asked:
    """One chat request that reached the engine while a script was on."""

    body: dict[str, Any]
    """As the proxy sent it: hub terms, whatever the harness speaks."""
    line: Line
    text: str
    """What the model had to say."""
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    @property
    def upstream_id(self) -> str:
        """vLLM's id of the reply, which the span records."""
        return f"chatcmpl-{self.id}"


@dataclass
class Director:
    """The relay: ``with Director(engine_url) as director``. ``script`` may be changed between runs; null passes all."""

    engine_url: str
    script: Script | None = None
    asked: list[Asked] = field(default_factory=list)
    """In order of arrival, since the last ``direct``."""
    failures: list[str] = field(default_factory=list)
    """What went wrong in here: a script that raised, an engine that hung up. Tests assert that it stays empty."""
    url: str = ""

    def __post_init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def direct(self, script: Script | None) -> None:
        """Puts a script on and forgets what was asked under the last."""
        self.script, self.asked, self.failures = script, [], []

    def __enter__(self) -> Director:
        self._thread.start()
        self._wait(self._open())
        return self

    def __exit__(self, *_: object) -> None:
        self._wait(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _wait(self, work: Any) -> Any:
        future: Future[Any] = asyncio.run_coroutine_threadsafe(work, self._loop)
        return future.result(30)

    async def _open(self) -> None:
        self._http = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None), auto_decompress=False, trust_env=False
        )
        app = web.Application(client_max_size=256 << 20)
        app.router.add_route("*", "/{path:.*}", self._relay)
        # A caller that leaves ends its handler, and with it the engine's work, as if nothing stood between them.
        self._runner = web.AppRunner(app, handler_cancellation=True, keepalive_timeout=3600, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self.url = f"http://{host}:{port}"

    async def _close(self) -> None:
        await self._runner.cleanup()
        await self._http.close()

    async def _relay(self, request: web.Request) -> web.StreamResponse:
        raw = await request.read()
        headers = passed_on(request.headers)
        if request.path == CHAT and self.script is not None:
            try:
                raw, asked = self._constrain(raw, self.script)
                headers["X-Request-Id"] = asked.id
            except Exception as error:
                self.failures.append(f"{type(error).__name__}: {error}")
                return web.json_response({"error": {"message": f"no text: {error}"}}, status=400)
        try:
            async with self._http.request(
                request.method,
                self.engine_url + request.path_qs,
                data=raw or None,
                headers=headers,
                allow_redirects=False,
            ) as reply:
                return await self._pass_back(request, reply)
        except ConnectionResetError:  # the caller left; closing the reply above tells vLLM
            return web.Response(status=499)
        except aiohttp.ClientError as error:
            self.failures.append(f"{request.path}: {type(error).__name__}: {error}")
            if request.transport is not None:
                request.transport.close()
            raise

    async def _pass_back(self, request: web.Request, reply: aiohttp.ClientResponse) -> web.StreamResponse:
        answer = web.StreamResponse(status=reply.status, headers=passed_on(reply.headers))
        if (length := reply.headers.get("content-length")) is not None:
            answer.content_length = int(length)
        await answer.prepare(request)
        async for piece in reply.content.iter_any():
            await answer.write(piece)
        await answer.write_eof()
        return answer

    def _constrain(self, raw: bytes, script: Script) -> tuple[bytes, Asked]:
        """Adds the script's text as the only thing to say."""
        body = orjson.loads(raw)
        line, text = script(body)
        asked = Asked(body, line, text)
        self.asked.append(asked)
        told = {**body, "structured_outputs": {"choice": [text]}, "logit_bias": MARKUP_BIAS}
        if body.get("tool_choice") not in (None, "auto", "none"):
            told["tool_choice"] = "auto"  # vLLM refuses two constraints; the text is a call anyway
        return orjson.dumps(told), asked


def passed_on(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if name.lower() not in HOP_BY_HOP}
