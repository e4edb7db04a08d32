"""One OpenAI client for all the rollouts of a worker, each call under its own rollout's key.

Building a client (and, above all, its HTTP pool) per rollout costs several times what a short rollout costs. So one is
shared, and the key is put on at the last moment from a context variable: every rollout is an asyncio task with a
context of its own, which its child tasks and threads inherit. The client's own ``api_key`` callable is not used: it
keeps the key on the shared client between two awaits, where another rollout can overwrite it. Without a rollout in
the context the call fails; it never goes out under another's key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

CURRENT_KEY: ContextVar[str] = ContextVar("singletree_rollout_key")


@contextmanager
def rollout_key(key: str) -> Iterator[None]:
    """Calls made inside, by this task and what it starts, carry ``key``."""
    token = CURRENT_KEY.set(key)
    try:
        yield
    finally:
        CURRENT_KEY.reset(token)


async def put_key_on(request: Any) -> None:
    """Request hook of the HTTP client: replace the placeholder by the current rollout's key."""
    request.headers["Authorization"] = f"Bearer {CURRENT_KEY.get()}"


def make_client(base_url: str, *, timeout_s: float, max_retries: int = 2) -> Any:
    """An ``openai.AsyncOpenAI`` for ``base_url`` with connections shared and keys per rollout."""
    import httpx2
    from openai import AsyncOpenAI

    limits = httpx2.Limits(max_connections=None, max_keepalive_connections=128)
    http = httpx2.AsyncClient(
        event_hooks={"request": [put_key_on]},
        limits=limits,
        timeout=httpx2.Timeout(timeout_s, connect=10.0),
        trust_env=False,
    )
    return AsyncOpenAI(
        base_url=base_url, api_key="set-per-rollout", http_client=http, max_retries=max_retries
    )
