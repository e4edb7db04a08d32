"""No key is ever written down: not in a log at any level, not in the database, not in an answer."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import httpx
import pytest

from spanlog.keys import hash_secret
from tests.proxy.conftest import Served, chat_body
from tests.proxy.fake_engine import MODEL, FakeEngine, Fault
from tests.proxy.requests_by_dialect import ROUTES
from tests.proxy.test_process import Process, free_port

HEADERS = ("authorization", "x-api-key", "x-goog-api-key")
COOKIE = "session=st-cookie-never-written-down"


def test_no_secret_is_in_logs_spans_or_answers(tmp_path: Path, fake: FakeEngine) -> None:
    """At the most talkative log level, with keys in every place that may hold one, in calls that work and that fail."""
    port = free_port()
    server = Process(
        tmp_path, "--port", str(port), "--log-level", "debug", SINGLETREE_ENGINE_KEY="st-engine-key"
    )
    answers: list[str] = []
    with server.wait_until_up(port) as admin:
        url = str(admin.base_url)
        admin.put("/api/policies/pol", json={"kind": "train", "model": MODEL}).raise_for_status()
        body = {"policy": "pol", "base_url": fake.url}
        admin.put("/api/engines/eng", json=body).raise_for_status()
        rollout = admin.post("/api/rollouts", json={"policy": "pol", "task": {}}).json()["id"]
        claimed = admin.post(f"/api/rollouts/{rollout}/claim", json={"runner": "r"})
        key = claimed.json()["key"]
        with httpx.Client(base_url=url, trust_env=False, timeout=30, headers={"cookie": COOKIE}) as agent:
            for fault in (None, Fault("status", argument=(500, "broken")), Fault("reset"), Fault("abort")):
                fake.fault = fault
                answers += speak(agent, key)
        for wrong in ("st-wrong-key", key[:-1] + "x"):
            answers += [admin.get("/api/policies", headers={"authorization": f"Bearer {wrong}"}).text]
            answers += [
                admin.post("/v1/chat/completions", json=chat_body(), headers={"x-api-key": wrong}).text
            ]
        answers.append(admin.get(f"/api/rollouts/{rollout}/spans").text)
        answers.append(admin.get("/metrics").text)
    server.process.terminate()
    code, errors = server.end()
    assert code == 0
    keys = json.loads((tmp_path / "keys.json").read_text())
    secrets = [key, keys["admin"], keys["runner"], "st-engine-key", "st-wrong-key", COOKIE]
    assert "engine failed" in errors, "the log is there"
    stored = b"".join(path.read_bytes() for path in tmp_path.glob("spans.db*"))
    with sqlite3.connect(tmp_path / "spans.db") as connection:
        dump = "\n".join(connection.iterdump())
    connection.close()
    assert hash_secret(key) in dump, "hashed at rest"
    for secret in secrets:
        assert secret not in errors
        assert secret.encode() not in stored and secret not in dump
        assert not any(secret in answer for answer in answers)


def speak(agent: httpx.Client, key: str) -> list[str]:
    """Every route, the key in each place, and bodies that are none."""
    answers = []
    for route in ROUTES.values():
        for stream in (False, True):
            body, path = route.request(stream), route.url(stream)
            for header in HEADERS:
                value = f"Bearer {key}" if header == "authorization" else key
                answers.append(agent.post(path, json=body, headers={header: value}).text)
        answers.append(agent.post(f"/r/{key}{route.path}", json=route.body).text)
        answers.append(agent.post(f"/r/{key}{route.path}", content=b"{nonsense").text)
        answers.append(agent.post(route.path, params={"key": key}, json=route.body).text)
    answers.append(agent.post(f"/r/{key}/no/such/path", json={}).text)
    answers.append(agent.get(f"/r/{key}/v1/models").text)
    answers.append(agent.get("/v1beta/models/m:nothing", params={"key": key}).text)
    answers.append(agent.get("/no/such/path", params={"key": key}).text)
    return answers


def test_no_header_of_the_caller_reaches_the_engine(ready: Served, fake: FakeEngine) -> None:
    _, key = ready.rollout()
    fake.headers.clear()
    headers = {"x-api-key": key, "cookie": COOKIE, "x-private": "st-private"}
    ready.http.post("/v1/chat/completions", json=chat_body(), headers=headers).raise_for_status()
    sent = json.dumps(fake.headers)
    assert key not in sent and "st-cookie" not in sent and "st-private" not in sent


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1:80", 200),
        ("localhost", 200),
        ("LOCALHOST:9", 200),
        ("[::1]:8700", 200),
        ("evil.example", 421),
        ("127.0.0.1.evil.example", 421),
        ("localhost.evil.example:8700", 421),
        ("", 421),
    ],
)
def test_a_name_that_leads_to_loopback_is_no_way_in(ready: Served, host: str, status: int) -> None:
    """A page in a browser could have any name resolved to this machine."""
    _, key = ready.rollout()
    for method, path in (("POST", "/v1/chat/completions"), ("GET", "/health")):
        response = ready.http.request(
            method, path, json=chat_body(), headers={"host": host, "x-api-key": key}
        )
        assert response.status_code == status


def test_operator_keys_are_compared_without_stopping_early(
    ready: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them, by a comparison that takes as long for a near miss as for any other key."""
    from proxy import auth

    compared: list[tuple[str, str]] = []

    def compare(one: str, other: str) -> bool:
        compared.append((one, other))
        return one == other

    monkeypatch.setattr(auth.hmac, "compare_digest", compare)
    ring = ready.app.control.state.services.keys
    assert ring.operator_scope(hash_secret("st-admin-test")) == "admin"
    assert len(compared) == 2 and all(len(one) == len(other) == 64 for one, other in compared)
