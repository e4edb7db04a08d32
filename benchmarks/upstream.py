"""A stand-in for vLLM that costs next to nothing: every reply is bytes that were made at start.

The completion has the size of a real one, about 8 KB: 64 tokens with their ids and logprobs, and 400 prompt ids. Only
what the proxy asks for at registration is answered besides.
"""

from __future__ import annotations

import sys
from typing import Any

import orjson
from aiohttp import web

MODEL = "bench"
PROMPT_TOKENS = 400
TOKENS = 64


def entries() -> list[dict[str, object]]:
    """64 logprob entries as vLLM writes them."""
    return [
        {
            "token": f" w{i:03d}",
            "logprob": -0.5 - i / 1000,
            "bytes": list(f" w{i:03d}".encode()),
            "top_logprobs": [],
        }
        for i in range(TOKENS)
    ]


def usage() -> dict[str, int]:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + TOKENS,
        "completion_tokens": TOKENS,
    }


def envelope(kind: str, choices: list[dict[str, object]], **more: object) -> dict[str, object]:
    return {"id": "chatcmpl-bench", "object": kind, "created": 1, "model": MODEL, "choices": choices} | more


def whole_reply() -> bytes:
    """The reply of a call that is not streamed."""
    text = "".join(str(entry["token"]) for entry in entries())
    choice: dict[str, object] = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "logprobs": {"content": entries()},
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": list(range(1000, 1000 + TOKENS)),
    }
    prompt = list(range(10_000, 10_000 + PROMPT_TOKENS))
    return orjson.dumps(envelope("chat.completion", [choice], usage=usage(), prompt_token_ids=prompt))


def stream_reply() -> list[bytes]:
    """The events of a streamed call: a role, 64 tokens, usage, the end."""
    first = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    bodies = [
        envelope(
            "chat.completion.chunk", [first], prompt_token_ids=list(range(10_000, 10_000 + PROMPT_TOKENS))
        )
    ]
    for i, entry in enumerate(entries()):
        last = i == TOKENS - 1
        choice: dict[str, object] = {
            "index": 0,
            "delta": {"content": entry["token"]},
            "logprobs": {"content": [entry]},
            "finish_reason": "stop" if last else None,
            "token_ids": [1000 + i],
        }
        bodies.append(envelope("chat.completion.chunk", [choice | ({"stop_reason": None} if last else {})]))
    bodies.append(envelope("chat.completion.chunk", [], usage=usage()))
    return [b"data: " + orjson.dumps(body) + b"\n\n" for body in bodies] + [b"data: [DONE]\n\n"]


WHOLE = whole_reply()
STREAM = stream_reply()


def probe_reply(body: dict[str, Any]) -> bytes:
    """What a registration probe wants to see: processed logprobs, and the prompt ids that it sent."""
    masked = {"token": "b", "logprob": -9999.0, "bytes": None}
    entry = {"token": "a", "logprob": 0.0, "bytes": None}
    choice: dict[str, object] = {
        "index": 0,
        "message": {"role": "assistant", "content": "a"},
        "logprobs": {"content": [entry | {"top_logprobs": [entry, masked]}]},
        "finish_reason": "length",
        "token_ids": [1],
    }
    prompt = (body.get("kv_transfer_params") or {}).get("prompt_token_ids", [1, 2, 3])
    return orjson.dumps(envelope("chat.completion", [choice], usage=usage(), prompt_token_ids=prompt))


async def chat(request: web.Request) -> web.StreamResponse:
    body = orjson.loads(await request.read())
    if body.get("stream"):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in STREAM:
            await response.write(event)
        await response.write_eof()
        return response
    is_probe = (body.get("max_tokens") or 9) <= 2
    return web.Response(body=probe_reply(body) if is_probe else WHOLE, content_type="application/json")


FIXED: dict[str, object] = {
    "/health": {},
    "/version": {"version": "0.32.0"},
    "/v1/models": {"data": [{"id": MODEL, "max_model_len": 4096}]},
    "/weight_info": {"weight_version": "default"},
    "/is_paused": {"is_paused": False},
    "/v1/chat/completions/render": {"token_ids": [1, 2, 3]},
}
"""Path -> the document that it always answers, whatever the method."""


async def fixed(request: web.Request) -> web.Response:
    return web.json_response(FIXED[request.path])


def main() -> None:
    app = web.Application(client_max_size=2**22)
    app.router.add_post("/v1/chat/completions", chat)
    for path in FIXED:
        app.router.add_route("*", path, fixed)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)


if __name__ == "__main__":
    main()
