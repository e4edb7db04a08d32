"""The caller's end of one call: headers, events, keep-alive comments, in an order that HTTP allows.

Headers go out with the first event, so that what fails before keeps its status. Only where a stream stays silent for so
long that callers give up (many do after five minutes), they go out ahead with a comment. Comments are no events: no
client's parser hands them on, in any dialect, so a call that has sent nothing else can still be tried again.
"""

from __future__ import annotations

import asyncio
import time

from proxy import asgi

COMMENT = b": keep-alive\n\n"
"""WHATWG HTML, section 9.2: a line that begins with a colon is ignored."""
BLANK = b"\n"
"""For streams that are one JSON document (Gemini's): white space means nothing before it and between its items."""
_NO_CACHE = (b"cache-control", b"no-cache")


class Outlet:
    """Awaited by one task at a time; ``keep_alive`` may come in between."""

    def __init__(self, send: asgi.Send, stream_type: bytes = asgi.EVENT_STREAM) -> None:
        self.send = send
        self._stream_type = stream_type
        self.started = False
        """Headers are out: no other status can follow."""
        self.begun = False
        """An event is out: another try would repeat it."""
        self.quiet_since = time.monotonic()
        self.sending = False
        """Events wait for a caller that is slow to take them: whatever is silent now, it is not the engine."""
        self._comment: asyncio.Task[None] | None = None

    async def events(self, events: bytes, *, last: bool = False) -> None:
        """Sends events, with the headers where they are not out yet."""
        self.sending = True
        try:
            if self._comment is not None:
                await self._comment
            self.begun = True
            await self._stream(events, last)
        finally:
            self.sending = False

    async def whole(self, body: bytes) -> None:
        await asgi.start(self.send, 200, asgi.JSON, (b"content-length", b"%d" % len(body)))
        await self.send({"type": "http.response.body", "body": body})

    def keep_alive(self) -> None:
        """Sends a comment soon, unless the last one is still on its way (a caller that reads nothing)."""
        self.quiet_since = time.monotonic()
        if self._comment is None or self._comment.done():
            comment = COMMENT if self._stream_type == asgi.EVENT_STREAM else BLANK
            self._comment = asyncio.create_task(self._stream(comment, last=False))

    async def _stream(self, data: bytes, last: bool) -> None:
        self.quiet_since = time.monotonic()
        if not self.started:
            self.started = True
            await asgi.start(self.send, 200, self._stream_type, _NO_CACHE)
        await self.send({"type": "http.response.body", "body": data, "more_body": not last})
