"""Each way in which the control plane can refuse has a name and a remedy; what can be sent again is sent again."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from harness_adapters import errors
from harness_adapters.client import ControlPlane, parse_retry_after
from tests.harness_adapters.conftest import ProxyProcess, free_port

GROUP = {"group_id": "grp_1", "policy": "p", "task": {"payload": {}}, "purpose": "train", "deadline_s": 60.0}


class FaultyServer:
    """Answers from a list: (status, body, headers), or null to drop the connection without an answer."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any, dict[str, str]] | None] = []
        self.bodies: list[Any] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", 0))
                outer.bodies.append(json.loads(self.rfile.read(length)))
                answer = outer.answers.pop(0)
                if answer is None:
                    self.close_connection = True
                    return
                status, body, headers = answer
                data = json.dumps(body).encode()
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(data))}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def faulty() -> Iterator[FaultyServer]:
    server = FaultyServer()
    yield server
    server.server.shutdown()
    server.server.server_close()


def create(url: str, retry_for_s: float = 10.0) -> Any:
    async def main() -> Any:
        async with ControlPlane(url, "key", retry_for_s=retry_for_s) as client:
            return await client.create_group(**GROUP)  # type: ignore[arg-type]

    return asyncio.run(main())


def test_a_call_is_sent_again_after_a_lost_answer_and_while_the_proxy_restarts(faulty: FaultyServer) -> None:
    faulty.answers = [None, (503, {}, {}), (201, {"id": "grp_1"}, {})]
    assert create(faulty.url) == {"id": "grp_1"}
    assert len(faulty.bodies) == 3 and faulty.bodies[0] == faulty.bodies[2]
    assert faulty.bodies[0]["id"] == "grp_1"  # the same id, so the same group


def test_a_refusal_is_not_sent_again(faulty: FaultyServer) -> None:
    faulty.answers = [(422, {"error": {"message": "size: too large", "code": "invalid_body"}}, {})]
    with pytest.raises(errors.ControlPlaneError, match="size: too large") as caught:
        create(faulty.url)
    assert (caught.value.status, caught.value.code) == (422, "invalid_body") and len(faulty.bodies) == 1


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ((429, {"error": {"message": "m"}}, {"Retry-After": "2"}), 2.0),
        ((429, {"error": {"message": "m", "retry_after": 0.25}}, {"Retry-After": "1"}), 0.25),
        ((429, "no json object", {}), 1.0),
    ],
)
def test_admission_says_when_to_try_again(faulty: FaultyServer, answer: Any, seconds: float) -> None:
    faulty.answers = [answer]
    with pytest.raises(errors.AdmissionRefused) as caught:
        create(faulty.url)
    assert caught.value.retry_after == seconds


@pytest.mark.parametrize("text", [None, "soon", "-1", "inf", "nan", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_strange_retry_after_is_a_second(text: str | None) -> None:
    assert parse_retry_after(text) == 1.0


def test_no_proxy() -> None:
    started = time.monotonic()
    with pytest.raises(errors.ProxyUnreachable, match="start one with: singletree serve") as caught:
        create(f"http://127.0.0.1:{free_port()}", retry_for_s=0.5)
    assert caught.value.exit_code == 3 and time.monotonic() - started < 5


def call(proxy: ProxyProcess, key: str, policy: str = "unknown") -> Any:
    async def main() -> Any:
        async with ControlPlane(proxy.url, key) as client:
            return await client.policy(policy)

    return asyncio.run(main())


def test_refusals_of_the_real_proxy_have_names(proxy: ProxyProcess) -> None:
    with pytest.raises(errors.KeyRefused, match="does not know this key"):
        call(proxy, "st-runner-wrong")
    with pytest.raises(errors.NotFound, match="policy 'unknown' is unknown"):
        call(proxy, proxy.key("runner"))
    proxy.call("PUT", "/api/policies/scope-test", {"kind": "frozen", "model": "m"})
    rollout = proxy.call(
        "POST", "/api/rollouts", {"policy": "scope-test", "task": {"payload": {}}, "purpose": "eval"}
    )
    agent_key = proxy.call("POST", f"/api/rollouts/{rollout['id']}/claim", {"runner": "r"})["key"]
    with pytest.raises(errors.KeyRefused, match="does not open the control plane"):
        call(proxy, agent_key)
