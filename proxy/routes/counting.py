"""How many tokens a prompt would have, counted by an engine of the caller's policy: the same template and tokenizer
that a call would meet, and in exact mode the recorded tokens that it would be given. Nothing is sampled, so no span is
written."""

from __future__ import annotations

import time
from typing import Any

from proxy import asgi, history
from proxy.auth import Caller
from proxy.dialects import gemini, messages
from proxy.dialects.base import BadRequest, Target
from proxy.errors import Refusal, UpstreamFailed
from proxy.hub import prompt_of
from proxy.routes.paths import Route
from proxy.services import Services
from spanlog.states import Mode


async def count_tokens(
    services: Services,
    caller: Caller,
    route: Route,
    scope: asgi.Scope,
    receive: asgi.Receive,
    send: asgi.Send,
) -> None:
    """Answers in the dialect's shape. Raises Refusal, ClientGone."""
    raw = await asgi.read_body(scope, receive, services.settings.max_body_bytes)
    try:
        if route.google:
            request = gemini.decode_count(raw, route.google.target(Target("", time.time()))).hub
        else:
            request = messages.decode_count(raw)
    except BadRequest as error:
        raise Refusal(error.status, str(error), param=error.param, code=error.code) from None
    async with asgi.CancelOnDisconnect(receive):
        count = len(await _prompt(services, caller, prompt_of(request)))
    await asgi.send_json(send, 200, {"totalTokens" if route.google else "input_tokens": count})


async def _prompt(services: Services, caller: Caller, request: dict[str, Any]) -> list[int]:
    """The prompt's tokens; another engine, or another connection, is tried where one fails."""
    client, body = services.watch.client, {**request, "model": caller.model}
    match = history.NOTHING
    if caller.mode == Mode.EXACT:
        match = await services.histories.match(caller.rollout_id, caller.policy_id, request)
    failure: UpstreamFailed | None = None
    avoid: str | None = None
    for _ in range(services.settings.upstream_tries):
        async with services.pool.use(caller.policy_id, caller.rollout_id, avoid) as engine:
            if engine.kind != "vllm":
                raise Refusal(
                    501, f"Engine '{engine.id}' cannot count tokens: only vLLM can.", code="no_count"
                )
            try:
                prompt = await history.exact_prompt(client, engine, body, match, caller.history)
                return prompt.tokens if prompt else await client.render(engine, body)
            except UpstreamFailed as error:
                failure, avoid = error, engine.id
                if not error.retryable:
                    break
            except TypeError as error:  # JSON is read to a greater depth than it is written
                raise Refusal(
                    400, f"The request cannot be passed on: {error}.", code="invalid_request"
                ) from None
    assert failure is not None
    raise Refusal(failure.status, failure.message, code=failure.code)
