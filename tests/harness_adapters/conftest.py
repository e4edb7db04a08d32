"""A real proxy, as a process of its own, over a scripted upstream."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from tests.harness_adapters.scripted_server import ScriptedServer, shop_clerk

ROOT = Path(__file__).parents[2]
SINGLETREE = Path(sys.executable).with_name("singletree")


@dataclass
class ProxyProcess:
    """``singletree serve`` on a database of its own."""

    folder: Path
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def keys_file(self) -> Path:
        return self.folder / "keys.json"

    def key(self, scope: str) -> str:
        return json.loads(self.keys_file.read_text())[scope]

    def start(self) -> None:
        self.port = self.port or free_port()
        environment = {
            name: value for name, value in os.environ.items() if not name.startswith("SINGLETREE_")
        }
        database = f"sqlite:///{self.folder / 'spans.db'}"
        arguments = ["serve", "--port", str(self.port), "--database", database, "--log-level", "warning"]
        log = (self.folder / "proxy.log").open("ab")
        with log:
            self.process = subprocess.Popen(
                [str(SINGLETREE), *arguments], env=environment, stdout=log, stderr=log, cwd=ROOT
            )
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.folder / "proxy.log").read_text()
            try:
                httpx.get(f"{self.url}/health", trust_env=False)
                return
            except httpx.TransportError:
                time.sleep(0.1)
        raise AssertionError("the proxy did not start")

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        self.process.wait(15)

    def call(self, method: str, path: str, body: Any = None, *, scope: str = "admin") -> Any:
        headers = {"Authorization": f"Bearer {self.key(scope)}"}
        response = httpx.request(
            method, self.url + path, json=body, headers=headers, trust_env=False, timeout=30
        )
        response.raise_for_status()
        return response.json() if response.content else None

    def add_policy(self, policy: str, upstream: str, *, group_size: int = 2) -> None:
        """A frozen policy answered by a scripted server."""
        self.call(
            "PUT",
            f"/api/policies/{policy}",
            {"kind": "frozen", "model": "scripted", "group_size": group_size},
        )
        body = {"policy": policy, "base_url": upstream, "kind": "openai"}
        engine = self.call("PUT", f"/api/engines/{policy}-engine", body)
        assert engine["state"] == "ready", engine

    def groups(self, policy: str) -> list[dict[str, Any]]:
        return self.call("GET", f"/api/groups?policy={policy}&limit=1000", scope="runner")["groups"]

    def spans(self, rollout_id: str) -> list[dict[str, Any]]:
        return self.call("GET", f"/api/rollouts/{rollout_id}/spans", scope="runner")["spans"]

    def rollout(self, rollout_id: str) -> dict[str, Any]:
        return self.call("GET", f"/api/rollouts/{rollout_id}", scope="runner")


def alive_with(marker: str) -> set[int]:
    """Processes that inherited the rollout's marker, found without the code under test."""
    found = set()
    for process in psutil.process_iter():
        try:
            if (
                process.environ().get("SINGLETREE_ROLLOUT") == marker
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found.add(process.pid)
        except psutil.Error:
            continue
    return found


def free_port() -> int:
    import socket

    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


@pytest.fixture(scope="session")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProxyProcess]:
    """One proxy for the package's tests; each takes a policy of its own."""
    process = ProxyProcess(tmp_path_factory.mktemp("proxy"))
    process.start()
    yield process
    process.stop()


@pytest.fixture
def clerk_upstream() -> Iterator[ScriptedServer]:
    """An upstream that plays the shop clerk."""
    with ScriptedServer(shop_clerk) as server:
        yield server
