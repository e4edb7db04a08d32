"""The proxy's control plane over HTTP: all that a runner knows of the rest of the system.

Every call here is idempotent (ids and idempotency keys come from the caller), so that one lost to a broken connection
or a restarting proxy is simply sent again.
"""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any
from urllib.parse import urlsplit

import httpx

from harness_adapters.errors import (
    AdmissionRefused,
    Conflict,
    ControlPlaneError,
    KeyRefused,
    NotFound,
    ProxyUnreachable,
)

RETRIED_STATUSES = frozenset({502, 503, 504})
FIRST_PAUSE_S = 0.1
LONGEST_PAUSE_S = 2.0
LOOPBACK_HOSTS = frozenset({"127.0.0.1", "localhost", "::1"})


class ControlPlane:
    """An asynchronous client of ``/api``; use it as an async context manager.

    ``url`` is the proxy's root, ``key`` a runner or admin key, ``retry_for_s`` how long a call is retried while the
    proxy does not answer or answers 502, 503 or 504.
    """

    def __init__(self, url: str, key: str, *, retry_for_s: float = 30.0) -> None:
        self.url = url.rstrip("/")
        self.retry_for_s = retry_for_s
        self._http = httpx.AsyncClient(
            base_url=self.url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=httpx.Timeout(30.0, connect=5.0),
            trust_env=urlsplit(self.url).hostname not in LOOPBACK_HOSTS,
        )

    async def __aenter__(self) -> ControlPlane:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    async def health(self, *, retry_for_s: float = 0.0) -> dict[str, Any]:
        """``GET /health``. Raises ``ProxyUnreachable``."""
        return await self._call("GET", "/health", retry_for_s=retry_for_s)

    async def policy(self, policy_id: str) -> dict[str, Any]:
        """The policy's row with its in-flight and unconsumed counts. Raises ``NotFound`` naming the known ones."""
        try:
            return await self._call("GET", f"/api/policies/{policy_id}")
        except NotFound as error:
            known = [row["id"] for row in rows(await self._call("GET", "/api/policies"))]
            raise NotFound(
                f"policy {policy_id!r} is unknown to {self.url} (known: {', '.join(known) or 'none'}); "
                "start a trainer on it, or create it with PUT /api/policies/{id}",
                status=error.status,
                code=error.code,
            ) from None

    async def engines(self) -> list[dict[str, Any]]:
        """All registered engines."""
        return rows(await self._call("GET", "/api/engines"))

    async def create_group(
        self,
        *,
        group_id: str,
        policy: str,
        task: dict[str, Any],
        purpose: str,
        deadline_s: float,
        size: int | None = None,
    ) -> dict[str, Any]:
        """Create the group with its queued rollouts, or return it if it exists. Raises ``AdmissionRefused``."""
        body: dict[str, Any] = {
            "id": group_id,
            "policy": policy,
            "task": task,
            "purpose": purpose,
            "deadline_s": deadline_s,
        }
        if size is not None:
            body["size"] = size
        return await self._call("POST", "/api/groups", body)

    async def group(self, group_id: str) -> dict[str, Any]:
        return await self._call("GET", f"/api/groups/{group_id}")

    async def claim(self, rollout_id: str, *, runner: str, harness: str) -> dict[str, Any]:
        """Start the rollout: ``{id, key, task, policy: {id, model}}``. Raises ``Conflict`` if it has ended."""
        return await self._call(
            "POST", f"/api/rollouts/{rollout_id}/claim", {"runner": runner, "harness": harness}
        )

    async def heartbeat(self, rollout_id: str, *, runner: str) -> dict[str, Any]:
        return await self._call("POST", f"/api/rollouts/{rollout_id}/heartbeat", {"runner": runner})

    async def finish(
        self,
        rollout_id: str,
        *,
        state: str,
        error: str | None = None,
        info: dict[str, Any] | None = None,
        rewards: list[dict[str, Any]] | None = None,
    ) -> dict[str, Any]:
        """End the rollout and reward it in one call. Raises ``Conflict`` if it had already ended."""
        body = {"state": state, "error": error, "info": info or {}, "rewards": rewards or []}
        return await self._call("POST", f"/api/rollouts/{rollout_id}/finish", body)

    async def rollout(self, rollout_id: str) -> dict[str, Any]:
        return await self._call("GET", f"/api/rollouts/{rollout_id}")

    async def spans(self, rollout_id: str) -> list[dict[str, Any]]:
        return rows(await self._call("GET", f"/api/rollouts/{rollout_id}/spans"))

    async def _call(
        self, method: str, path: str, body: dict[str, Any] | None = None, *, retry_for_s: float | None = None
    ) -> Any:
        """Send, retry while the proxy is away, and turn refusals into named errors."""
        give_up_at = time.monotonic() + (self.retry_for_s if retry_for_s is None else retry_for_s)
        pause = FIRST_PAUSE_S
        while True:
            response: httpx.Response | None = None
            cause = ""
            try:
                response = await self._http.request(method, path, json=body)
                if response.status_code not in RETRIED_STATUSES:
                    break
            except httpx.TransportError as error:
                cause = str(error) or type(error).__name__
            if time.monotonic() + pause >= give_up_at:
                if response is not None:
                    break
                raise ProxyUnreachable(
                    f"no proxy answers at {self.url} ({cause}); start one with: singletree serve"
                )
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(pause * 2, LONGEST_PAUSE_S)
        if response.is_success:
            return response.json() if response.content else {}
        raise named_error(response, self.url)


def rows(answer: Any) -> list[dict[str, Any]]:
    """A listing's rows, whether the route wraps them in ``items`` or not."""
    if isinstance(answer, dict):
        return next((value for value in answer.values() if isinstance(value, list)), [])
    return answer


def named_error(response: httpx.Response, url: str) -> ControlPlaneError:
    """The error that an unsuccessful answer stands for, with the proxy's own message where it gave one."""
    status = response.status_code
    message, code = f"HTTP {status}", ""
    retry_after: float | None = None
    try:
        answer = response.json()
        error = answer.get("error", {}) if isinstance(answer, dict) else {}
        message, code = str(error.get("message", message)), str(error.get("code") or "")
        retry_after = float(error["retry_after"]) if "retry_after" in error else None
    except (ValueError, AttributeError, TypeError):
        pass
    if status == 401:
        return KeyRefused(
            f"{url} does not know this key ({message}); pass --keys-file, or set SINGLETREE_KEY",
            status=status,
            code=code,
        )
    if status == 403:
        return KeyRefused(
            f"this key does not open the control plane ({message}); use the runner key from the proxy's keys.json",
            status=status,
            code=code,
        )
    if status == 404:
        return NotFound(message, status=status, code=code)
    if status == 409:
        return Conflict(message, status=status, code=code)
    if status == 429:
        if retry_after is None:
            retry_after = parse_retry_after(response.headers.get("retry-after"))
        return AdmissionRefused(message, retry_after=retry_after, status=status, code=code)
    return ControlPlaneError(f"{url} answered {status}: {message}", status=status, code=code)


def parse_retry_after(value: str | None, *, default: float = 1.0) -> float:
    """Seconds of a ``Retry-After`` header (RFC 9110, section 10.2.3; fractions are taken, dates are not)."""
    try:
        seconds = float(value) if value is not None else default
    except ValueError:
        return default
    return seconds if 0 <= seconds < float("inf") else default
