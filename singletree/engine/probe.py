"""Asks a running vLLM, by behaviour and not by its word, whether it can be trained against.

A wrong setting would not fail; it would train on wrong numbers. So each is tried: logprobs at two temperatures, a
prompt given as tokens, a rendered chat, the label of the weights, the extension that loads them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from singletree.engine.errors import EngineUnfit, EngineUnreachable

MINIMUM_VERSION = (0, 32)
"""The routes were measured on 0.32.0."""
REMEDY = "start it with `singletree engine start`, or add that yourself"


@dataclass(frozen=True)
class EngineReport:
    """What a fit engine said."""

    base_url: str
    version: str
    """vLLM's, e.g. ``0.32.0+cpu``."""
    model: str
    """The name to put in requests."""
    window: int
    """Tokens, prompt and completion together."""
    weights: str
    """The label of its weights: ``default`` after a start, else ``{policy}:{version}``."""


def check_engine(base_url: str, *, timeout_s: float = 60.0) -> EngineReport:
    """Raises ``EngineUnreachable`` if nothing answers, ``EngineUnfit`` naming the flag that is missing."""
    base_url = base_url.rstrip("/").removesuffix("/v1")
    try:
        with httpx.Client(base_url=base_url, timeout=timeout_s, trust_env=False) as client:
            version = _check_version(client)
            weights = _check_control_routes(client)
            model, window = _read_model(client)
            _check_processed_logprobs(client, model)
            _check_exact_tokens(client, model)
    except httpx.InvalidURL as error:
        raise EngineUnreachable(f"{base_url} is not a URL: {error}") from error
    except (httpx.TransportError, httpx.UnsupportedProtocol) as error:
        reason = str(error) or type(error).__name__
        raise EngineUnreachable(
            f"no engine answers at {base_url} ({reason}); is vLLM running there?"
        ) from error
    return EngineReport(base_url, version, model, window, weights)


def _check_version(client: httpx.Client) -> str:
    reply = client.get("/version")
    if reply.status_code != 200 or "version" not in (body := _json(reply)):
        raise EngineUnfit(
            f"{client.base_url} answers, but not as vLLM does (GET /version: {reply.status_code})"
        )
    version = str(body["version"])
    numbers = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if len(numbers) == 2 and numbers < MINIMUM_VERSION:
        raise EngineUnfit(
            f"vLLM {version} is too old; 0.32 is the first with every route that training needs"
        )
    return version


def _check_control_routes(client: httpx.Client) -> str:
    """Pause, load and label; returns the label."""
    info = client.get("/weight_info")
    if info.status_code != 200:
        raise EngineUnfit(f"vLLM has no control routes; it needs VLLM_SERVER_DEV_MODE=1: {REMEDY}")
    if _json(client.get("/is_paused")).get("is_paused"):
        raise EngineUnfit("vLLM is paused, so it would never answer; POST /resume, or restart it")
    call = {"method": "singletree_read_proof", "kwargs": {"folder": "/", "name": ".proof-none"}}
    if client.post("/collective_rpc", json=call).status_code != 200:
        raise EngineUnfit(f"vLLM cannot load weights for training; it lacks --worker-extension-cls: {REMEDY}")
    return str(_json(info).get("weight_version"))


def _read_model(client: httpx.Client) -> tuple[str, int]:
    reply = client.get("/v1/models")
    if reply.status_code == 401:
        raise EngineUnfit("vLLM wants an API key; start it without --api-key, on a network of its own")
    models = _json(reply).get("data") or []
    if not models:
        raise EngineUnfit(f"vLLM serves no model (GET /v1/models: {reply.status_code})")
    return models[0]["id"], int(models[0]["max_model_len"])


def _check_processed_logprobs(client: httpx.Client, model: str) -> None:
    """Halving the temperature doubles the gaps between logprobs, unless they are reported before temperature."""
    wide, narrow = (_spread(client, model, temperature) for temperature in (0.5, 1.0))
    if narrow > 0.05 and abs(wide / narrow - 2.0) > 0.1:
        raise EngineUnfit(
            f"vLLM reports logprobs before temperature; it needs --logprobs-mode processed_logprobs: {REMEDY}"
        )


def _spread(client: httpx.Client, model: str, temperature: float) -> float:
    """Gap between the first and the fifth most likely first token."""
    body = {
        "model": model,
        "prompt": [1, 2, 3],
        "max_tokens": 1,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
        "logprobs": 5,
        "return_tokens_as_token_ids": True,
    }
    reply = client.post("/v1/completions", json=body)
    if reply.status_code != 200:
        raise EngineUnfit(f"vLLM cannot complete a prompt: {_reason(reply)}")
    values = sorted(_json(reply)["choices"][0]["logprobs"]["top_logprobs"][0].values(), reverse=True)
    return values[0] - values[4]


def _check_exact_tokens(client: httpx.Client, model: str) -> None:
    """Given tokens win over messages that say something else."""
    sent = _render(client, model, "what is sent as tokens")
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "what is ignored"}],
        "kv_transfer_params": {"prompt_token_ids": sent},
        "return_token_ids": True,
        "max_tokens": 1,
    }
    reply = client.post("/v1/chat/completions", json=body)
    if reply.status_code != 200:
        raise EngineUnfit(f"vLLM cannot answer a chat: {_reason(reply)}")
    if _json(reply).get("prompt_token_ids") != sent:
        raise EngineUnfit(
            "this vLLM does not take a chat's prompt as tokens (kv_transfer_params); use 0.32.0"
        )


def _render(client: httpx.Client, model: str, text: str) -> Sequence[int]:
    body = {"model": model, "messages": [{"role": "user", "content": text}]}
    reply = client.post("/v1/chat/completions/render", json=body)
    if reply.status_code in (403, 404):
        raise EngineUnfit(f"vLLM does not render chats; it needs --enable-scale-out: {REMEDY}")
    if reply.status_code != 200:
        raise EngineUnfit(f"vLLM cannot render a chat: {_reason(reply)}")
    return _json(reply)["token_ids"]


def _json(reply: httpx.Response) -> dict[str, Any]:
    try:
        body = reply.json()
    except ValueError:
        body = None
    return body if isinstance(body, dict) else {}


def _reason(reply: httpx.Response) -> str:
    error = _json(reply).get("error")
    message = error.get("message") if isinstance(error, dict) else reply.text
    return f"{reply.status_code} {str(message)[:200]}"
