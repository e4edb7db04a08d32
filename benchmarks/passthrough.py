"""The yardstick: a bare FastAPI route that forwards with aiohttp and keeps nothing. What the proxy costs above this is
the price of capture, versions, the sampling contract and durability."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator

import aiohttp
import uvicorn
from fastapi import FastAPI, Request, Response
from fastapi.responses import StreamingResponse


def create_app(upstream: str) -> FastAPI:
    """The route, on one shared client session."""
    sessions: list[aiohttp.ClientSession] = []

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
            sessions.append(session)
            yield

    app = FastAPI(lifespan=lifespan)

    @app.post("/v1/chat/completions")
    async def chat(request: Request) -> Response:
        body = await request.body()
        headers = {"content-type": "application/json"}
        reply = await sessions[0].post(f"{upstream}/v1/chat/completions", data=body, headers=headers)
        if reply.content_type == "text/event-stream":

            async def events() -> AsyncIterator[bytes]:
                async with reply:
                    async for chunk in reply.content.iter_any():
                        yield chunk

            return StreamingResponse(events(), media_type="text/event-stream")
        async with reply:
            return Response(await reply.read(), status_code=reply.status, media_type="application/json")

    return app


if __name__ == "__main__":
    uvicorn.run(
        create_app(sys.argv[2]), host="127.0.0.1", port=int(sys.argv[1]), log_level="error", access_log=False
    )
