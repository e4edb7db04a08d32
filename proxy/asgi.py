"""The little of ASGI that the data plane needs, without a framework: every layer costs CPU on each call, and a
middleware that wraps ``receive`` can hide that the caller has left."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from types import TracebackType
from typing import Any

import orjson

from proxy.errors import ClientGone, Refusal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

JSON = b"application/json"
EVENT_STREAM = b"text/event-stream; charset=utf-8"


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """The request's body. Raises Refusal 413 or 415, ClientGone."""
    for name, value in scope["headers"]:
        if name == b"content-length" and value.isdigit() and int(value) > limit:
            raise _too_large(limit)
        if name == b"content-encoding" and value.lower() != b"identity":
            raise Refusal(
                415, "Compressed request bodies are not accepted: send plain JSON.", code="content_encoding"
            )
    pieces: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        body = message.get("body", b"")
        size += len(body)
        if size > limit:
            raise _too_large(limit)
        pieces.append(body)
        if not message.get("more_body"):
            return b"".join(pieces)


async def start(send: Send, status: int, content_type: bytes, *extra: tuple[bytes, bytes]) -> None:
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [(b"content-type", content_type), *extra],
        }
    )


async def send_json(send: Send, status: int, document: Any, *extra: tuple[bytes, bytes]) -> None:
    body = orjson.dumps(document)
    await start(send, status, JSON, (b"content-length", b"%d" % len(body)), *extra)
    await send({"type": "http.response.body", "body": body})


def _too_large(limit: int) -> Refusal:
    return Refusal(
        413,
        f"The request body is larger than {limit} bytes: raise SINGLETREE_MAX_BODY_BYTES if it should pass.",
        code="body_too_large",
    )


class CancelOnDisconnect:
    """An async block that is cancelled as soon as the caller closes its connection; it then raises ClientGone.

    For work done for the caller's sake alone. The request's body must have been read: only the disconnect is left to
    receive.
    """

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._fired = False

    async def __aenter__(self) -> CancelOnDisconnect:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = asyncio.create_task(self._watch())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self._watcher.cancel()
        if not self._fired:
            return
        # As asyncio.timeout does it: take back our own cancellation, and nobody else's.
        still_cancelled = self._task.uncancel() > self._cancelling
        if kind is not None and issubclass(kind, (asyncio.CancelledError, Exception)) and not still_cancelled:
            raise ClientGone from error

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._fired = True
        self._task.cancel()
