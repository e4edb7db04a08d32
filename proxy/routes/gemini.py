"""What Gemini's clients ask for beside a reply: models and token counts, in Google's shapes."""

from __future__ import annotations

import time
from typing import Any

import orjson

from proxy import asgi
from proxy.auth import Caller
from proxy.dialects import gemini
from proxy.dialects.base import BadRequest, Target
from proxy.dialects.gemini.paths import GeminiPath
from proxy.errors import Refusal, UpstreamFailed
from proxy.services import Services

METHODS = ["generateContent", "streamGenerateContent", "countTokens"]
RENDERED = ("messages", "tools", "tool_choice", "reasoning_effort")
"""The fields of a request that the prompt is made of."""


async def send_models(services: Services, caller: Caller, path: GeminiPath, send: asgi.Send) -> None:
    """The rollout's policy, which is the only model here; asked for by name, under any name."""
    windows = [
        engine.capabilities.get("max_model_len")
        for engine in services.pool.engines.values()
        if engine.policy_id == caller.policy_id
    ]
    name = path.model or caller.policy_id
    model: dict[str, Any] = {
        "name": f"models/{name}",
        "version": "1",
        "displayName": name,
        "supportedGenerationMethods": METHODS,
    }
    if known := [window for window in windows if window]:
        model["inputTokenLimit"] = model["outputTokenLimit"] = min(known)
    await asgi.send_json(send, 200, model if path.model else {"models": [model]})


async def count_tokens(
    services: Services,
    caller: Caller,
    path: GeminiPath,
    scope: asgi.Scope,
    receive: asgi.Receive,
    send: asgi.Send,
) -> None:
    """Exact: the engine renders the prompt as it would for a reply, and its tokens are counted. Raises Refusal."""
    raw = await asgi.read_body(scope, receive, services.settings.max_body_bytes)
    target = path.target(Target(span_id="", created_at=time.time()))
    try:
        call = gemini.decode_count(raw, target)
    except BadRequest as error:
        raise Refusal(error.status, str(error), param=error.param, code=error.code) from None
    prompt = {name: call.hub[name] for name in RENDERED if name in call.hub}
    try:
        with services.pool.use(caller.policy_id, caller.rollout_id) as engine:
            tokens = await services.watch.client.render(engine, prompt, model=caller.model)
    except UpstreamFailed as error:
        raise Refusal(error.status, error.message, code=error.code) from None
    except orjson.JSONEncodeError as error:  # JSON is read to a greater depth than it is written
        raise Refusal(400, f"The request cannot be passed on: {error}.", code="invalid_request") from None
    await asgi.send_json(send, 200, {"totalTokens": len(tokens)})
