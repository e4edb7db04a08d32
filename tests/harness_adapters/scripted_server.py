"""A small OpenAI-compatible server that plays a model from a script: upstream of real harnesses, and of the proxy.

``/v1/chat/completions`` (streaming or not) and ``/v1/models``. What it answers is decided by a function of the request,
so that a tool call can be followed by an answer from its result. It records every request with its key.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Reply = dict[str, Any]
"""``{"content": str}`` and/or ``{"tool_calls": [(name, arguments)]}``, ``status`` for an error, ``delay`` in seconds."""


@dataclass
class Seen:
    """One request as it came in."""

    key: str
    body: dict[str, Any]


@dataclass
class ScriptedServer:
    """Serves in a thread of its own; use as a context manager."""

    script: Callable[[dict[str, Any]], Reply]
    seen: list[Seen] = field(default_factory=list)
    url: str = ""
    _loop: asyncio.AbstractEventLoop | None = None
    _ended: asyncio.Event | None = None

    def __enter__(self) -> ScriptedServer:
        ready = threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def __exit__(self, *_: object) -> None:
        assert self._loop is not None and self._ended is not None
        self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(10)

    def _serve(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
            app = web.Application(client_max_size=64 * 1024 * 1024)
            app.router.add_post("/v1/chat/completions", self._chat)
            app.router.add_get("/v1/models", self._models)
            app.router.add_get("/health", self._models)
            runner = web.AppRunner(app, shutdown_timeout=0.5)
            await runner.setup()
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            ready.set()
            await self._ended.wait()
            await runner.cleanup()

        asyncio.run(main())

    async def _models(self, _request: web.Request) -> web.Response:
        return web.json_response(
            {"object": "list", "data": [{"id": "scripted", "object": "model", "owned_by": "t"}]}
        )

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        key = request.headers.get("Authorization", "").removeprefix("Bearer ")
        self.seen.append(Seen(key, body))
        reply = self.script(body)
        if reply.get("delay"):
            await asyncio.sleep(reply["delay"])
        if reply.get("status", 200) != 200:
            error = {
                "message": reply.get("content", "scripted"),
                "type": "server_error",
                "param": None,
                "code": None,
            }
            return web.json_response({"error": error}, status=reply["status"])
        message = message_of(reply, len(self.seen))
        finish = "tool_calls" if reply.get("tool_calls") else "stop"
        usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
        head = {"id": f"chatcmpl-{len(self.seen)}", "created": int(time.time()), "model": body["model"]}
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": finish}
            return web.json_response(
                {**head, "object": "chat.completion", "choices": [choice], "usage": usage}
            )
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for call_index, call in enumerate(message.get("tool_calls") or []):
            call["index"] = call_index
        for delta, reason in (({"role": "assistant", "content": ""}, None), (message, None), ({}, finish)):
            choice = {"index": 0, "delta": delta, "finish_reason": reason}
            chunk = {**head, "object": "chat.completion.chunk", "choices": [choice]}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        if (body.get("stream_options") or {}).get("include_usage"):
            chunk = {**head, "object": "chat.completion.chunk", "choices": [], "usage": usage}
            await response.write(f"data: {json.dumps(chunk)}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response


def message_of(reply: Reply, number: int) -> dict[str, Any]:
    """The assistant message of a scripted reply."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.get("content")}
    if reply.get("tool_calls"):
        message["tool_calls"] = [
            {
                "id": f"call_{number}_{index}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(reply["tool_calls"])
        ]
    return message


def shop_clerk(body: dict[str, Any]) -> Reply:
    """Calls ``get_price`` with the prompt's last word, then answers with what the tool said."""
    last = body["messages"][-1]
    text = last["content"] if isinstance(last["content"], str) else last["content"][0]["text"]
    if last["role"] == "tool":
        return {"content": text}
    return {"tool_calls": [("get_price", {"item": text.split()[-1].strip("?")})]}
