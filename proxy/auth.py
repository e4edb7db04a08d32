"""Who is calling: secrets to callers, scopes to what they may do.

An agent's key names its rollout and opens that rollout's data plane, nothing else: an agent can read its environment,
so rewarding, finishing and reading need the runner's key. Secrets are looked up by their SHA-256; the operator's two
keys come from the settings, are held hashed in memory and compared in constant time.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from proxy.errors import Refusal
from spanlog import keys, policies
from spanlog.database import Database
from spanlog.errors import SpanlogError
from spanlog.states import ENDED_ROLLOUT_STATES

CACHE_SIZE = 20_000

Headers = Iterable[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Caller:
    """What an agent's key stands for."""

    rollout_id: str
    rollout_state: str
    purpose: str
    policy_id: str
    policy_kind: str
    model: str
    """The policy's name on its engines."""
    sampling: dict[str, Any]
    mode: str
    """``exact`` or ``observe``."""
    history: str
    """``append_only`` or ``faithful``."""
    untrainable: str
    """``serve`` or ``refuse``."""


class KeyRing:
    """Callers by secret, remembered for a short time: the hot path asks the database once per key and ``ttl_s``."""

    def __init__(self, database: Database, ttl_s: float, admin: str | None, runner: str | None) -> None:
        self._database = database
        self._ttl_s = ttl_s
        self._operators = [
            (keys.hash_secret(secret), scope)
            for secret, scope in ((admin, keys.Scope.ADMIN), (runner, keys.Scope.RUNNER))
            if secret
        ]
        self._callers: dict[str, tuple[float, Caller]] = {}
        self._pending: dict[str, asyncio.Future[Caller]] = {}
        self._generation = 0

    def operator_scope(self, hashed: str) -> str | None:
        found = None
        for known, scope in self._operators:
            if hmac.compare_digest(known, hashed):
                found = found or scope
        return found

    def scope(self, secret: str) -> str | None:
        """The scope of any key; None if there is no such key. Asks the database (blocking)."""
        hashed = keys.hash_secret(secret)
        if scope := self.operator_scope(hashed):
            return scope
        with self._database.read() as conn:
            row = keys.find(conn, hashed)
        return row.scope if row else None

    async def caller(self, secret: str | None) -> Caller:
        """The rollout that an agent's key names. Raises Refusal 401 (unknown), 403 (not an agent's), 409 (ended)."""
        if not secret:
            raise Refusal(
                401, "No API key given: use the key that claiming the rollout returned.", code="no_api_key"
            )
        hashed = keys.hash_secret(secret)
        cached = self._callers.get(hashed)
        if cached is not None and cached[0] > time.monotonic():
            caller = cached[1]
        else:
            caller = await self._look_up(hashed)
        if caller.rollout_state in ENDED_ROLLOUT_STATES:
            raise Refusal(
                409,
                f"Rollout {caller.rollout_id} has ended ({caller.rollout_state}): claim another one.",
                code="rollout_ended",
            )
        return caller

    async def _look_up(self, hashed: str) -> Caller:
        """Asks the database, once for all calls that wait for the same key. Raises Refusal."""
        generation = self._generation
        pending = self._pending.get(hashed)
        if pending is None:
            pending = self._pending[hashed] = asyncio.ensure_future(asyncio.to_thread(self._find, hashed))
            pending.add_done_callback(lambda _: self._pending.pop(hashed, None))
        try:
            caller = await asyncio.shield(pending)  # one caller that leaves must not cancel it for the others
        except SpanlogError as error:
            raise Refusal(
                503, f"The span log cannot be read: {error}", code="span_log", retry_after=1
            ) from error
        if generation == self._generation:  # else it may be from before a change
            if len(self._callers) >= CACHE_SIZE:
                self._callers.clear()
            self._callers[hashed] = (time.monotonic() + self._ttl_s, caller)
        return caller

    def forget(self) -> None:
        """After a change made here to rollouts or policies: the next calls ask the database again."""
        self._generation += 1
        self._callers.clear()
        self._pending.clear()

    def _find(self, hashed: str) -> Caller:
        if scope := self.operator_scope(hashed):
            raise _wrong_scope(scope)
        with self._database.read() as conn:
            key = keys.find(conn, hashed)
            if key is None:
                raise Refusal(
                    401,
                    "Unknown API key: it was never given out, or its rollout was claimed again since.",
                    code="invalid_api_key",
                )
            if key.rollout_id is None or key.policy_id is None:
                raise _wrong_scope(key.scope)
            policy = policies.get(conn, key.policy_id)
        return Caller(
            rollout_id=key.rollout_id,
            rollout_state=key.rollout_state or "",
            purpose=key.purpose or "",
            policy_id=key.policy_id,
            policy_kind=policy.kind,
            model=policy.model,
            sampling=policy.sampling,
            mode=policy.mode,
            history=policy.history,
            untrainable=policy.untrainable,
        )


def _wrong_scope(scope: str) -> Refusal:
    return Refusal(
        403,
        f"This is a key of scope '{scope}'; model calls need the key of a rollout (POST /api/rollouts/{{id}}/claim).",
        code="wrong_scope",
    )


def find_secret(path: str, headers: Headers) -> tuple[str | None, str]:
    """The secret of a data-plane request, and the path without it.

    Taken from ``/r/{secret}/v1/…``, else ``Authorization: Bearer``, ``x-api-key`` or ``x-goog-api-key``.
    """
    if path.startswith("/r/"):
        secret, _, rest = path[3:].partition("/")
        return unquote(secret), "/" + rest
    found: dict[bytes, str] = {}
    for name, value in headers:
        if name in (b"authorization", b"x-api-key", b"x-goog-api-key"):
            found[name] = value.decode("latin-1").strip()
    scheme, _, token = found.get(b"authorization", "").partition(" ")
    if scheme.lower() == "bearer" and token:
        return token.strip(), path
    return found.get(b"x-api-key") or found.get(b"x-goog-api-key"), path
