"""A stand-in for vLLM that can fail in every way that a real one was seen to fail, and answers at once.

It speaks the routes that the proxy uses, in the shapes of vLLM 0.32. Real behaviour is tested against real vLLM; this
is for faults and for speed.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

PROMPT_IDS = [1, 2, 3]
TOKENS = [(10, "Hel", -0.5), (11, "lo ", -0.25), (12, "wörld", -1.5), (13, "", -0.125)]
"""Id, text and logprob of what it "samples"; the last is the end of turn."""
CLOSER = TOKENS[-1][0]
MODEL = "fake-model"
NAN = float("nan")


@dataclass
class Fault:
    """What goes wrong with the next ``times`` calls."""

    kind: str
    times: int = 10**9
    argument: Any = None


def render(body: dict[str, Any]) -> list[int]:
    """A template of its own: the first messages up to a reply are ``PROMPT_IDS``, then a byte is a token."""
    messages = body.get("messages") or ()
    first = next((n for n, message in enumerate(messages) if message.get("role") == "assistant"), None)
    if first is None:
        return PROMPT_IDS
    ids = list(PROMPT_IDS)
    for message in messages[first:]:
        text = f"{json.dumps(message.get('tool_calls'))}{json.dumps(message.get('content'))[:-1]}"
        reply = message.get("role") == "assistant"
        ids += [*([] if reply else [201]), *(1000 + byte for byte in text.encode()), CLOSER if reply else 202]
    return [*ids, 203] if body.get("add_generation_prompt", True) else ids


def prompt_ids(body: dict[str, Any]) -> list[int]:
    """What it "samples" from: the tokens given to it, else those of the messages."""
    return (body.get("kv_transfer_params") or {}).get("prompt_token_ids") or render(body)


@dataclass
class FakeEngine:
    label: str = "default"
    _runner: Any = None
    fault: Fault | None = None
    token_delay_s: float = 0.0
    processed: bool = True
    closed_routes: set[str] = field(default_factory=set)
    silent_routes: set[str] = field(default_factory=set)
    cut_routes: set[str] = field(default_factory=set)
    paused: bool = False
    requests: list[dict[str, Any]] = field(default_factory=list)
    rendered: list[dict[str, Any]] = field(default_factory=list)
    """Requests to the render route."""
    headers: list[dict[str, str]] = field(default_factory=list)
    running: int = 0
    cut_off: int = 0
    """Calls whose caller left before the end."""
    url: str = ""
    message: dict[str, Any] | None = None
    """What it answers chats with instead of its usual text; all its tokens then come with the end."""
    before_finish: Callable[[], Awaitable[None]] | None = None

    def start(self) -> FakeEngine:
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(ready,), daemon=True)
        self._thread.start()
        assert ready.wait(10)
        return self

    def stop(self) -> None:
        asyncio.run_coroutine_threadsafe(self._runner.cleanup(), self._loop).result(10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    def _run(self, ready: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)

        async def serve() -> None:
            app = web.Application(client_max_size=2**26)
            app.router.add_route("*", "/{path:.*}", self._handle)
            self._runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            await self._runner.setup()
            site = web.TCPSite(self._runner, "127.0.0.1", 0)
            await site.start()
            self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"
            ready.set()

        self._loop.run_until_complete(serve())
        self._loop.run_forever()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        path = "/" + request.match_info["path"]
        if path in self.closed_routes:
            return web.json_response({"error": {"message": "closed"}}, status=403)
        if path in self.silent_routes:
            await asyncio.sleep(30)
        if path in self.cut_routes and request.transport is not None:
            request.transport.abort()
        fixed: dict[str, Any] = {
            "/health": {},
            "/version": {"version": "0.32.0"},
            "/weight_info": {"weight_version": self.label},
            "/is_paused": {"is_paused": self.paused},
            "/v1/models": {"data": [{"id": MODEL, "max_model_len": 512}]},
        }
        if path in fixed:
            return web.json_response(fixed[path])
        if path == "/v1/chat/completions/render":
            body = await request.json()
            self.rendered.append(body)
            if (body.get("max_tokens") or 0) > 512:  # as vLLM does, also where nothing is to be generated
                error = {"message": "max_tokens cannot be greater than max_model_len", "code": 400}
                return web.json_response({"error": error}, status=400)
            return web.json_response({"token_ids": render(body)})
        if path not in ("/v1/chat/completions", "/v1/completions"):
            return web.json_response({"error": {"message": f"no route {path}"}}, status=404)
        body = await request.json()
        self.requests.append(body)
        if self.fault is not None and self.fault.kind == "ignores_tokens":
            body = {name: value for name, value in body.items() if name != "kv_transfer_params"}
        self.headers.append(dict(request.headers))
        self.running += 1
        try:
            return await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.cut_off += 1
            raise
        finally:
            self.running -= 1

    def _take_fault(self) -> Fault:
        fault = self.fault
        if fault is None or fault.times <= 0:
            return Fault("none")
        fault.times -= 1
        return fault

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        fault = self._take_fault()
        if delay_s := body.get("fake_delay_s"):  # a field that nobody knows is passed on
            await asyncio.sleep(delay_s)
        if fault.kind == "status":
            status, message = fault.argument
            error = {"message": message, "type": "BadRequestError", "param": None, "code": status}
            return web.json_response({"error": error}, status=status, headers={"Retry-After": "7"})
        if fault.kind == "silent":
            await asyncio.sleep(fault.argument or 60)
        if fault.kind == "whole":
            return web.Response(body=fault.argument, content_type="application/json")
        if fault.kind == "reset":
            assert request.transport is not None
            request.transport.abort()
            await asyncio.sleep(10)
        if body.get("stream"):
            return await self._stream(request, body, fault)
        for _ in TOKENS:
            await asyncio.sleep(self.token_delay_s)
        if self.before_finish:
            await self.before_finish()
        reply = as_text(self.reply(body, fault)) if "prompt" in body else self.reply(body, fault)
        return web.Response(body=json.dumps(reply).encode(), content_type="application/json")

    async def _stream(self, request: web.Request, body: dict[str, Any], fault: Fault) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        if fault.kind == "raw":
            for piece in fault.argument:
                await response.write(piece)
                await asyncio.sleep(0.002)
            return response
        chunks = self.chunks(body, fault)
        if "prompt" in body:
            chunks = [as_text(chunk) for chunk in chunks[1:]]
            chunks[0]["choices"][0]["prompt_token_ids"] = PROMPT_IDS
        for index, chunk in enumerate(chunks):
            if fault.kind == "reset_after" and index == fault.argument:
                assert request.transport is not None
                await asyncio.sleep(0.02)
                request.transport.abort()
                await asyncio.sleep(10)
            if fault.kind == "silent_after" and index == fault.argument[0]:
                await asyncio.sleep(fault.argument[1])
            if index == len(chunks) - 2 and self.before_finish:
                await self.before_finish()
            await response.write(b"data: " + json.dumps(chunk, ensure_ascii=False).encode() + b"\n\n")
            await asyncio.sleep(self.token_delay_s)
        await response.write(b"data: [DONE]\n\n")
        return response

    def entries(self, fault: Fault) -> list[dict[str, Any]]:
        entries = [
            {"token": text, "logprob": logprob, "bytes": None, "top_logprobs": []}
            for _, text, logprob in TOKENS
        ]
        odd = {"nan": NAN, "nan_extra_logprob": NAN, "null": None, "masked": -9999.0, "positive": 0.5}
        if fault.kind in odd:
            entries[1]["logprob"] = odd[fault.kind]
        return entries

    def usage(self, body: dict[str, Any], fault: Fault) -> dict[str, float]:
        count = NAN if fault.kind == "nan_usage" else len(TOKENS)
        prompt = len(prompt_ids(body))
        return {"prompt_tokens": prompt, "completion_tokens": count, "total_tokens": prompt + len(TOKENS)}

    def reply(self, body: dict[str, Any], fault: Fault) -> dict[str, Any]:
        entries = self.entries(fault)
        if body.get("top_logprobs"):  # a probe of the logprobs mode
            for entry in entries:
                entry["logprob"] = 0.0 if self.processed else entry["logprob"]
                other = -9999.0 if self.processed else -2.0
                entry["top_logprobs"] = [
                    {"token": entry["token"], "logprob": 0.0},
                    {"token": "?", "logprob": other},
                ]
        if fault.kind.endswith("extra_logprob"):
            entries = [*entries, entries[0]]
        choice: dict[str, Any] = {
            "index": 0,
            "message": {"role": "assistant", "content": "".join(text for _, text, _ in TOKENS)},
            "logprobs": {"content": entries},
            "finish_reason": "abort" if fault.kind == "abort" else "stop",
            "stop_reason": None,
            "token_ids": [token for token, _, _ in TOKENS],
            "routed_experts": None,
        }
        if fault.kind == "missing_ids":
            del choice["token_ids"]
        if self.message:
            choice["message"] = self.message
            choice["finish_reason"] = "tool_calls" if self.message.get("tool_calls") else "stop"
        return {
            "id": "chatcmpl-1",
            "object": "chat.completion",
            "created": 1,
            "model": body.get("model"),
            "choices": [choice],
            "usage": self.usage(body, fault),
            "prompt_logprobs": None,
            "prompt_token_ids": prompt_ids(body),
            "kv_transfer_params": None,
        }

    def chunks(self, body: dict[str, Any], fault: Fault) -> list[dict[str, Any]]:
        base = {
            "id": "chatcmpl-1",
            "object": "chat.completion.chunk",
            "created": 1,
            "model": body.get("model"),
        }
        first = {
            "index": 0,
            "delta": {"role": "assistant", "content": ""},
            "logprobs": None,
            "finish_reason": None,
        }
        chunks: list[dict[str, Any]] = [{**base, "choices": [first], "prompt_token_ids": prompt_ids(body)}]
        if self.message:
            chunks += [{**base, "choices": [choice]} for choice in self._message_choices(fault)]
            chunks.append({**base, "choices": [], "usage": self.usage(body, fault)})
            return chunks
        for index, ((token, text, _), entry) in enumerate(zip(TOKENS, self.entries(fault), strict=True)):
            last = index == len(TOKENS) - 1
            choice: dict[str, Any] = {
                "index": 0,
                "delta": {"content": text} if text else {},
                "logprobs": {
                    "content": [entry, entry] if fault.kind.endswith("extra_logprob") and last else [entry]
                },
                "finish_reason": ("abort" if fault.kind == "abort" else "stop") if last else None,
                "token_ids": [token],
            }
            if last:
                choice["stop_reason"] = None
            if fault.kind == "missing_ids":
                del choice["token_ids"]
            chunks.append({**base, "choices": [choice]})
        if (body.get("stream_options") or {}).get("include_usage"):
            chunks.append({**base, "choices": [], "usage": self.usage(body, fault)})
        return chunks

    def _message_choices(self, fault: Fault) -> Iterator[dict[str, Any]]:
        assert self.message is not None
        for delta in deltas(self.message):
            yield {"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}
        yield {
            "index": 0,
            "delta": {},
            "logprobs": {"content": self.entries(fault)},
            "finish_reason": "tool_calls" if self.message.get("tool_calls") else "stop",
            "token_ids": [token for token, _, _ in TOKENS],
        }


def deltas(message: dict[str, Any], size: int = 5) -> Iterator[dict[str, Any]]:
    """A message cut as vLLM's parsers cut it: texts and arguments in pieces of ``size`` characters, names whole."""
    for name in ("reasoning", "content"):
        text = message.get(name) or ""
        for start in range(0, len(text), size):
            yield {name: text[start : start + size]}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        yield {
            "tool_calls": [{**call, "index": index, "function": {"name": function["name"], "arguments": ""}}]
        }
        for start in range(0, len(function["arguments"]), size):
            piece = {"arguments": function["arguments"][start : start + size]}
            yield {"tool_calls": [{"index": index, "function": piece}]}


def as_text(document: dict[str, Any]) -> dict[str, Any]:
    """A chat reply or chunk in the form of vLLM's ``/v1/completions``: texts, and prompt ids inside the choices."""
    choices = []
    for choice in document["choices"]:
        message = choice.get("message", choice.get("delta"))
        choice = {name: value for name, value in choice.items() if name not in ("message", "delta")}
        entries = choice["logprobs"]["content"]
        choice["logprobs"] = {
            "tokens": [entry["token"] for entry in entries],
            "token_logprobs": [entry["logprob"] for entry in entries],
            "top_logprobs": [{entry["token"]: entry["logprob"]} for entry in entries],
            "text_offset": [0 for _ in entries],
        }
        choice |= {"text": message.get("content", ""), "prompt_token_ids": document.get("prompt_token_ids")}
        choices.append(choice)
    kept = {name: document[name] for name in document if name not in ("prompt_token_ids", "prompt_logprobs")}
    return {**kept, "id": "cmpl-1", "object": "text_completion", "choices": choices}
