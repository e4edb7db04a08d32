"""OpenAI and Anthropic clients that are cheap enough to make one per rollout.

What costs is the connection pool: with one per rollout a short rollout takes 2.4 times the CPU (see
tests/harness_adapters/measure_construction.py). A client object over a shared pool costs nothing that can be measured,
and it holds its rollout's key by itself, so no call can go out under another's.
"""

from __future__ import annotations

import functools
from typing import Any

from harness_adapters.protocol import Endpoint


@functools.cache
def connections(timeout_s: float) -> Any:
    """The process's one ``httpx2.AsyncClient`` for calls of up to ``timeout_s`` seconds."""
    import httpx2

    return httpx2.AsyncClient(
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=128),
        timeout=httpx2.Timeout(timeout_s, connect=10.0),
        trust_env=False,
    )


def make_client(endpoint: Endpoint, *, timeout_s: float, max_retries: int = 2) -> Any:
    """An ``openai.AsyncOpenAI`` for one rollout, over the shared connections; it need not be closed."""
    from openai import AsyncOpenAI

    return AsyncOpenAI(
        base_url=endpoint.base_url,
        api_key=endpoint.api_key,
        http_client=connections(timeout_s),
        timeout=timeout_s,
        max_retries=max_retries,
    )


def make_anthropic_client(endpoint: Endpoint, *, timeout_s: float, max_retries: int = 2) -> Any:
    """An ``anthropic.AsyncAnthropic`` for one rollout, over the shared connections; it need not be closed.

    Its base URL is the root: that client adds ``/v1/messages`` itself.
    """
    from anthropic import AsyncAnthropic

    return AsyncAnthropic(
        base_url=endpoint.base_url.removesuffix("/v1"),
        api_key=endpoint.api_key,
        http_client=connections(timeout_s),
        timeout=timeout_s,
        max_retries=max_retries,
    )
