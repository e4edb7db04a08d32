"""A stand-in for vLLM that costs next to nothing: every reply is bytes that were made at start.

The completion has the size of a real one, about 8 KB: 64 tokens with their ids and logprobs, and 400 prompt ids. What
the proxy asks for at registration is answered besides, and in exact mode: a template that renders text as one token for
four bytes, and replies whose prompt is the one that was given as tokens.
"""

from __future__ import annotations

import sys
from typing import Any

import orjson
from aiohttp import web

MODEL = "bench"
PROMPT = list(range(10_000, 10_400))
TOKENS = 64
CLOSER = 5000
"""The token that ends each turn, and that the model samples to end its own."""
ASSISTANT = 5001
"""The generation prompt."""
SAMPLED = [*range(1000, 1000 + TOKENS - 1), CLOSER]


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


def usage(prompt: list[int]) -> dict[str, int]:
    count = len(prompt)
    return {"prompt_tokens": count, "total_tokens": count + TOKENS, "completion_tokens": TOKENS}


def envelope(kind: str, choices: list[dict[str, object]], **more: object) -> dict[str, object]:
    return {"id": "chatcmpl-bench", "object": kind, "created": 1, "model": MODEL, "choices": choices} | more


TEXT = "".join(str(entry["token"]) for entry in entries())


def whole_reply(prompt: list[int]) -> bytes:
    """The reply of a call that is not streamed."""
    choice: dict[str, object] = {
        "index": 0,
        "message": {"role": "assistant", "content": TEXT},
        "logprobs": {"content": entries()},
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": SAMPLED,
    }
    return orjson.dumps(envelope("chat.completion", [choice], usage=usage(prompt), prompt_token_ids=prompt))


def stream_reply(prompt: list[int]) -> list[bytes]:
    """The events of a streamed call: a role, 64 tokens, usage, the end."""
    first = {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": None,
    }
    bodies = [envelope("chat.completion.chunk", [first], prompt_token_ids=prompt)]
    for i, entry in enumerate(entries()):
        last = i == TOKENS - 1
        choice: dict[str, object] = {
            "index": 0,
            "delta": {"content": entry["token"]},
            "logprobs": {"content": [entry]},
            "finish_reason": "stop" if last else None,
            "token_ids": [SAMPLED[i]],
        }
        bodies.append(envelope("chat.completion.chunk", [choice | ({"stop_reason": None} if last else {})]))
    bodies.append(envelope("chat.completion.chunk", [], usage=usage(prompt)))
    return [b"data: " + orjson.dumps(body) + b"\n\n" for body in bodies] + [b"data: [DONE]\n\n"]


WHOLE = whole_reply(PROMPT)
STREAM = stream_reply(PROMPT)


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
    prompt = given_prompt(body) or render(body)
    return orjson.dumps(envelope("chat.completion", [choice], usage=usage(prompt), prompt_token_ids=prompt))


def given_prompt(body: dict[str, Any]) -> list[int] | None:
    """The prompt where it was given as tokens, as exact mode does."""
    return (body.get("kv_transfer_params") or {}).get("prompt_token_ids")


def render(body: dict[str, Any]) -> list[int]:
    """The prompt of a request by the stand-in's template."""
    tokens: list[int] = []
    for message in body["messages"]:
        tokens += [*str(message.get("content") or "").encode()[::4], CLOSER]
    return tokens if body.get("add_generation_prompt") is False else [*tokens, ASSISTANT]


async def chat(request: web.Request) -> web.StreamResponse:
    body = orjson.loads(await request.read())
    given = given_prompt(body)
    if body.get("stream"):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        for event in STREAM if given is None else stream_reply(given):
            await response.write(event)
        await response.write_eof()
        return response
    is_probe = (body.get("max_tokens") or 9) <= 2
    reply = probe_reply(body) if is_probe else WHOLE if given is None else whole_reply(given)
    return web.Response(body=reply, content_type="application/json")


async def rendered(request: web.Request) -> web.Response:
    return web.json_response({"token_ids": render(orjson.loads(await request.read()))})


FIXED: dict[str, object] = {
    "/health": {},
    "/version": {"version": "0.32.0"},
    "/v1/models": {"data": [{"id": MODEL, "max_model_len": 4096}]},
    "/weight_info": {"weight_version": "default"},
    "/is_paused": {"is_paused": False},
}
"""Path -> the document that it always answers, whatever the method."""


async def fixed(request: web.Request) -> web.Response:
    return web.json_response(FIXED[request.path])


def main() -> None:
    app = web.Application(client_max_size=2**22)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_post("/v1/chat/completions/render", rendered)
    for path in FIXED:
        app.router.add_route("*", path, fixed)
    web.run_app(app, host="127.0.0.1", port=int(sys.argv[1]), print=None, access_log=None)


if __name__ == "__main__":
    main()
