"""A served proxy over real engines, on one span log that a trainer publishes through."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from spanlog import steps
from spanlog.records import SpanRecord
from tests.engine_fixture import SERVED_NAME
from tests.proxy.conftest import Served, serve
from trainer.publish import PublishReport, SwapOutcome, publish, republish_stale

POLICY = "student"


@dataclass
class Loop:
    """Proxy and trainer of one policy."""

    proxy: Served
    fence: int

    def add_engine(self, engine_id: str, base_url: str) -> dict[str, Any]:
        body = {"policy": POLICY, "base_url": base_url, "kind": "vllm"}
        return self.proxy.ok("PUT", f"/api/engines/{engine_id}", body)

    def engine(self, engine_id: str) -> dict[str, Any]:
        return self.proxy.ok("GET", f"/api/engines/{engine_id}")

    def publish(self, path: Path, expected_version: int = 0) -> PublishReport:
        return publish(
            self.proxy.database,
            policy_id=POLICY,
            fence=self.fence,
            expected_version=expected_version,
            path=path,
            step_id=None,
        )

    def republish(self) -> list[SwapOutcome]:
        return republish_stale(self.proxy.database, policy_id=POLICY, fence=self.fence)

    def rollout(self) -> tuple[str, str]:
        """A claimed rollout: its id and its agent key."""
        return self.proxy.rollout(POLICY)


@contextmanager
def run_loop(folder: Path, *, guard_s: float = 0.2, **sampling: float) -> Iterator[Loop]:
    """``guard_s``: how late after a swap tokens may still be old ones; longer than the stalls of a busy machine."""
    with serve(f"sqlite:///{folder / 'spans.db'}", version_guard_s=guard_s) as proxy:
        proxy.policy(POLICY, model=SERVED_NAME, sampling=sampling)
        with proxy.database.begin() as conn:
            fence = steps.take_over(conn, POLICY)
        yield Loop(proxy, fence)


@dataclass
class Call:
    """One chat call through the proxy, made in a thread."""

    loop: Loop
    body: dict[str, Any]
    rollout: str = ""
    status: int = 0
    text: str = ""
    events: int = 0
    _thread: threading.Thread | None = None

    def start(self) -> Call:
        self.rollout, key = self.loop.rollout()
        self._thread = threading.Thread(target=self._run, args=(key,), daemon=True)
        self._thread.start()
        return self

    def join(self, timeout_s: float = 60.0) -> Call:
        assert self._thread is not None
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the call still waits"
        return self

    def span(self) -> SpanRecord:
        return self.loop.proxy.span(self.rollout)

    def _run(self, key: str) -> None:
        url = f"{self.loop.proxy.url}/v1/chat/completions"
        headers = {"Authorization": f"Bearer {key}"}
        with httpx.stream(
            "POST", url, json=self.body, headers=headers, timeout=90.0, trust_env=False
        ) as reply:
            self.status = reply.status_code
            for line in reply.iter_lines():
                self.text += line + "\n"
                self.events += line.startswith("data: ")
