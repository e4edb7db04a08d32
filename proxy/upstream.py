"""One attempt at an engine: send the call, read the reply, and say in one way what went wrong."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import aiohttp
import structlog

from proxy.engine.pool import EngineView
from proxy.errors import UpstreamFailed
from proxy.hub import loads
from spanlog.errors import SpanlogError

if TYPE_CHECKING:
    from proxy.engine.client import EngineClient
    from proxy.patience import Patience

RETRY_STATUSES = frozenset({408, 429})
"""Beside all from 500 on."""
MAX_ERROR_BYTES = 1_000_000
END_OF_STREAM_S = 0.5
"""How long to wait for the end of a body whose last event has come, so that its connection can be used again."""
LOGGED_CHARACTERS = 300
"""Of an engine's message: it may quote the request at any length."""

log = structlog.get_logger("proxy.calls")


@asynccontextmanager
async def open_call(
    client: EngineClient, engine: EngineView, path: str, body: bytes, patience: Patience | None = None
) -> AsyncIterator[aiohttp.ClientResponse]:
    """The engine's reply to a call, status 200, still to be read. Leaving the block early stops the engine's work.

    ``patience`` limits the wait for the reply's headers; without it the client's own limits hold. Raises
    UpstreamFailed, also for what breaks within the block.
    """
    response: aiohttp.ClientResponse | None = None
    try:
        async with patience or nullcontext():
            response = await _send(client, engine, path, body, waits=patience is not None)
            if response.status != 200:
                raise await _failure(response)
        yield response
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        log.info(
            "connection failed", engine=engine.id, url=engine.base_url, error=str(error)[:LOGGED_CHARACTERS]
        )
        raise _broken(engine, error, reached=response is not None) from error
    finally:
        if response is not None:
            response.close()  # after the last byte the connection is back in the pool already, and this does nothing


def _broken(engine: EngineView, error: Exception, *, reached: bool) -> UpstreamFailed:
    """An agent has no business with the engine's address, which aiohttp's messages name too."""
    if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ConnectionTimeoutError):
        return UpstreamFailed(
            f"Engine '{engine.id}' was silent for too long: raise SINGLETREE_UPSTREAM_FIRST_S or "
            "SINGLETREE_UPSTREAM_IDLE_S if it was only slow.",
            status=504,
            code="engine_timeout",
        )
    return UpstreamFailed(
        f"Engine '{engine.id}' failed ({type(error).__name__}). Is it running?",
        code="engine_broke_off" if reached else "engine_unreachable",
    )


async def _send(
    client: EngineClient, engine: EngineView, path: str, body: bytes, *, waits: bool
) -> aiohttp.ClientResponse:
    """Sends the call; a new connection is preceded by checking the engine, which can fail in ways of its own."""
    try:
        return await client.post(engine, path, body, waits=waits)
    except (SpanlogError, KeyError, ValueError) as error:
        log.warning("engine not checked", engine=engine.id, error=str(error)[:LOGGED_CHARACTERS])
        raise UpstreamFailed(
            f"Which weights engine '{engine.id}' serves could not be checked: see the proxy's log.",
            status=503,
            code="engine_not_checked",
        ) from error


def parse(payload: bytes) -> dict[str, Any]:
    """A reply or chunk. Raises UpstreamFailed where it is not an object, or is an error that the engine sent."""
    try:
        document = loads(payload)
    except ValueError as error:
        raise UpstreamFailed(f"The engine sent something that is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise UpstreamFailed("The engine sent JSON that is not an object.")
    if error := document.get("error"):
        body = document if isinstance(error, dict) else None  # else it is not in the callers' shape
        raise UpstreamFailed(_message(document) or "The engine reported an error.", body=body)
    return document


async def finish_stream(response: aiohttp.ClientResponse) -> None:
    """Reads on to the body's end, but not for long."""
    try:
        async with asyncio.timeout(END_OF_STREAM_S):
            while not response.content.at_eof():
                await response.content.readany()
    except (TimeoutError, aiohttp.ClientError):
        response.close()


async def _failure(response: aiohttp.ClientResponse) -> UpstreamFailed:
    """The engine's error, with its status and message kept."""
    raw = b""
    while len(raw) < MAX_ERROR_BYTES and (piece := await response.content.readany()):
        raw += piece
    try:
        document = loads(raw)
    except ValueError:
        document = None
    message = (
        _message(document)
        or raw[:500].decode("utf-8", "replace")
        or f"The engine answered {response.status}."
    )
    return UpstreamFailed(
        message,
        status=response.status if response.status >= 400 else 502,
        body=document if isinstance(document, dict) and isinstance(document.get("error"), dict) else None,
        retryable=response.status in RETRY_STATUSES or response.status >= 500,
        retry_after=response.headers.get("Retry-After"),
    )


def _message(document: Any) -> str | None:
    error = document.get("error") if isinstance(document, dict) else None
    message = error.get("message") if isinstance(error, dict) else error
    return message if isinstance(message, str) else None
