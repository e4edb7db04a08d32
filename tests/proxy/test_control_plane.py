"""The control plane over HTTP, on SQLite and on PostgreSQL."""

from __future__ import annotations

import math
import time
from typing import Any

import pytest

from spanlog import policies
from tests.proxy.conftest import RUNNER, Served, wait_for
from tests.proxy.fake_engine import MODEL, FakeEngine

TASK = {"source": "test", "payload": {"question": "1+1"}}


def group_body(**fields: Any) -> dict[str, Any]:
    return {"policy": "pol", "task": TASK, **fields}


def error_of(response: Any) -> tuple[int, str]:
    return response.status_code, response.json()["error"]["code"]


def test_the_whole_life_of_a_group(any_proxy: Served, fake: FakeEngine) -> None:
    proxy = any_proxy
    proxy.policy(group_size=2, sampling={"temperature": 0.7})
    assert proxy.engine(fake)["state"] == "ready"
    created = proxy.api("POST", "/api/groups", group_body(id="g1"), key=RUNNER)
    assert created.status_code == 201
    group = created.json()
    assert group["state"] == "open"
    assert [(r["index"], r["state"]) for r in group["rollouts"]] == [(0, "queued"), (1, "queued")]
    again = proxy.api("POST", "/api/groups", group_body(id="g1"), key=RUNNER)
    assert (again.status_code, again.json()["rollouts"]) == (200, group["rollouts"])
    assert error_of(proxy.api("POST", "/api/groups", group_body(id="g1", size=3))) == (409, "conflict")

    for index, rollout in enumerate(group["rollouts"]):
        path = f"/api/rollouts/{rollout['id']}"
        claimed = proxy.ok("POST", path + "/claim", {"runner": "r1", "harness": "h"}, key=RUNNER)
        assert claimed["task"]["payload"] == TASK["payload"]
        assert claimed["policy"] == {"id": "pol", "model": MODEL}
        assert error_of(proxy.api("POST", path + "/claim", {"runner": "r2"})) == (409, "conflict")
        proxy.ok("POST", path + "/heartbeat", {"runner": "r1"}, key=RUNNER)
        assert proxy.chat(claimed["key"]).status_code == 200
        body = {"state": "succeeded", "info": {"turns": 1}, "rewards": [{"name": "reward", "value": index}]}
        ended = proxy.ok("POST", path + "/finish", body, key=RUNNER)
        assert (ended["state"], ended["reward"], ended["reward_state"]) == ("succeeded", index, "final")
        assert error_of(proxy.api("POST", path + "/heartbeat", {"runner": "r1"})) == (409, "rollout_ended")
        spans = proxy.ok("GET", path + "/spans", key=RUNNER)["spans"]
        assert [(s["status"], s["trainable"]) for s in spans] == [("ok", True)]
        assert spans[0]["sampling"]["temperature"] == 0.7
        assert len(spans[0]["completion_tokens"]) == len(spans[0]["logprobs"]) == len(spans[0]["version_low"])
        assert spans[0]["request"]["messages"] and spans[0]["reply"]["message"]["role"] == "assistant"
        assert len(proxy.ok("GET", path, key=RUNNER)["rewards"]) == 1
    settled = proxy.ok("GET", "/api/groups/g1", key=RUNNER)
    assert settled["state"] == "settled" and settled["task"]["payload"] == TASK["payload"]
    listed = proxy.ok("GET", "/api/groups?policy=pol&state=settled", key=RUNNER)["groups"]
    assert [g["id"] for g in listed] == ["g1"]
    assert proxy.ok("GET", "/api/policies/pol")["unconsumed"] == 2
    assert proxy.ok("GET", "/api/steps?policy=pol") == {"steps": []}
    assert proxy.ok("GET", "/api/policies/pol/versions") == {"versions": []}


def test_creating_a_rollout_is_idempotent(any_proxy: Served) -> None:
    any_proxy.policy()
    body = group_body(id="r1")
    first = any_proxy.api("POST", "/api/rollouts", body)
    second = any_proxy.api("POST", "/api/rollouts", body)
    assert (first.status_code, second.status_code) == (201, 200)
    assert first.json() == second.json()
    assert first.json()["id"] == "r1"


def test_admission(any_proxy: Served) -> None:
    any_proxy.policy(group_size=2, rollouts_per_step=4, max_staleness=0)
    for _ in range(2):
        assert any_proxy.api("POST", "/api/groups", group_body()).status_code == 201
    refused = any_proxy.api("POST", "/api/groups", group_body())
    assert error_of(refused) == (429, "admission")
    assert int(refused.headers["retry-after"]) >= 1
    assert any_proxy.api("POST", "/api/groups", group_body(purpose="eval")).status_code == 201


@pytest.mark.parametrize("value", ["NaN", "Infinity", "-Infinity", '"1"', "null", "true", "1e999"])
def test_a_reward_must_be_a_finite_number(any_proxy: Served, value: str) -> None:
    any_proxy.policy()
    rollout, _ = any_proxy.rollout()
    for path, body in (
        ("rewards", f'{{"name": "reward", "value": {value}}}'),
        ("finish", f'{{"state": "succeeded", "rewards": [{{"name": "reward", "value": {value}}}]}}'),
    ):
        response = any_proxy.http.post(
            f"/api/rollouts/{rollout}/{path}",
            content=body,
            headers={"Authorization": f"Bearer {RUNNER}", "Content-Type": "application/json"},
        )
        assert error_of(response) == (422, "invalid_body")
        assert "value" in response.json()["error"]["message"]
    found = any_proxy.ok("GET", f"/api/rollouts/{rollout}")
    assert (found["state"], found["reward_state"], found["reward"], found["rewards"]) == (
        "running",
        "pending",
        None,
        [],
    )


def test_rewards_are_events(any_proxy: Served) -> None:
    any_proxy.policy()
    rollout, _ = any_proxy.rollout()
    path = f"/api/rollouts/{rollout}/rewards"
    one = {"name": "reward", "value": 0, "idempotency_key": "k"}
    first = any_proxy.ok("POST", path, one, key=RUNNER)
    assert any_proxy.ok("POST", path, one, key=RUNNER) == first
    assert error_of(any_proxy.api("POST", path, {**one, "value": 1})) == (409, "conflict")
    assert error_of(any_proxy.api("POST", path, {"value": 1, "span_id": "spn_none"})) == (404, "not_found")
    any_proxy.ok("POST", path, {"name": "reward", "value": 0.5}, key=RUNNER)
    found = any_proxy.ok("GET", f"/api/rollouts/{rollout}")
    assert (found["reward"], found["reward_state"]) == (0.5, "revised")
    assert not math.isnan(found["rewards"][0]["value"])


def test_an_end_that_is_sent_again_adds_no_reward(any_proxy: Served) -> None:
    any_proxy.policy()
    rollout, _ = any_proxy.rollout()
    rewards = [{"name": "reward", "value": 1.0}, {"name": "length", "value": 9.0}]
    for _ in range(2):
        ended = any_proxy.ok(
            "POST", f"/api/rollouts/{rollout}/finish", {"state": "succeeded", "rewards": rewards}
        )
        assert (ended["reward"], ended["reward_state"]) == (1.0, "final")
    found = any_proxy.ok("GET", f"/api/rollouts/{rollout}")["rewards"]
    assert {event["name"] for event in found} == {"reward", "length"} and len(found) == 2


@pytest.mark.parametrize("value", ['"a\\u0000b"', '"\\ud800"', "NaN", '{"\\u0000": 1}', '[{"x": Infinity}]'])
def test_what_cannot_be_stored_is_refused_on_each_database(any_proxy: Served, value: str) -> None:
    any_proxy.policy()
    rollout, _ = any_proxy.rollout()
    headers = {"Authorization": f"Bearer {RUNNER}", "Content-Type": "application/json"}

    def post(path: str, body: str) -> Any:
        return any_proxy.http.post(path, content=body, headers=headers)

    body = f'{{"policy": "pol", "task": {{"payload": {{"x": {value}}}}}}}'
    response = post("/api/groups", body)
    assert error_of(response) == (422, "invalid_body")
    assert "payload" in response.json()["error"]["message"]
    if value.startswith('"'):
        claim = f'{{"runner": "r", "harness": {value}}}'
        assert error_of(post(f"/api/rollouts/{rollout}/claim", claim)) == (422, "invalid_body")
    finish = f'{{"state": "failed", "info": {{"tail": {value}}}}}'
    assert post(f"/api/rollouts/{rollout}/finish", finish).status_code == 200, (
        "what it printed may be anything"
    )


def test_a_fault_of_the_proxy_itself_leaves_in_shape(
    any_proxy: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(policies, "get", fails)
    response = any_proxy.api("GET", "/api/policies/pol")
    assert error_of(response) == (500, "internal_error")
    assert "not foreseen" not in response.text


def test_time_ends_what_nobody_ends(any_proxy: Served) -> None:
    any_proxy.policy()
    group = any_proxy.ok("POST", "/api/groups", group_body(size=2, deadline_s=0.5))
    rollout = group["rollouts"][0]["id"]
    key = any_proxy.ok("POST", f"/api/rollouts/{rollout}/claim", {"runner": "r"})["key"]
    settled = wait_for(
        lambda: (g := any_proxy.ok("GET", f"/api/groups/{group['id']}"))["state"] != "open" and g
    )
    assert settled["state"] == "void", "no reward at all: nothing to learn from"
    assert {(r["state"], r["reward_state"], r["reward"]) for r in settled["rollouts"]} == {
        ("abandoned", "expired", None)
    }
    assert any_proxy.chat(key).status_code == 409


def test_scopes(any_proxy: Served, fake: FakeEngine) -> None:
    any_proxy.policy()
    _, agent = any_proxy.rollout()
    for method, path, body in (
        ("PUT", "/api/policies/x", {"kind": "train", "model": "m"}),
        ("PUT", "/api/engines/x", {"policy": "pol", "base_url": fake.url}),
        ("POST", "/api/engines/x/drain", None),
        ("DELETE", "/api/engines/x", None),
    ):
        assert error_of(any_proxy.api(method, path, body, key=RUNNER)) == (403, "wrong_scope")
    for method, path, body in (("GET", "/api/policies", None), ("POST", "/api/groups", group_body())):
        assert error_of(any_proxy.api(method, path, body, key=agent)) == (403, "wrong_scope")
        assert error_of(any_proxy.api(method, path, body, key="nobody")) == (401, "bad_key")
        assert error_of(any_proxy.http.request(method, path, json=body)) == (401, "no_key")


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", "/api/policies/none", None, 404),
        ("GET", "/api/engines/none", None, 404),
        ("GET", "/api/groups/none", None, 404),
        ("GET", "/api/rollouts/none", None, 404),
        ("GET", "/api/rollouts/none/spans", None, 404),
        ("POST", "/api/rollouts/none/claim", {"runner": "r"}, 404),
        ("POST", "/api/groups", {"policy": "none", "task": {}}, 404),
        ("POST", "/api/groups", group_body(sise=2), 422),
        ("POST", "/api/groups", group_body(purpose="test"), 422),
        ("POST", "/api/groups", group_body(deadline_s=-1), 422),
        ("PUT", "/api/policies/a:b", {"kind": "train", "model": "m"}, 422),
        ("PUT", "/api/policies/p2", {"kind": "train", "model": "m", "sampling": {"min_p": 1}}, 422),
        ("PUT", "/api/policies/p2", {"kind": "train", "model": "m", "sampling": {"temperature": 0.001}}, 422),
        ("PUT", "/api/policies/pol", {"kind": "frozen", "model": "m"}, 409),
        ("GET", "/api/nothing", None, 404),
    ],
)
def test_mistakes_are_named(any_proxy: Served, method: str, path: str, body: Any, status: int) -> None:
    any_proxy.policy()
    response = any_proxy.api(method, path, body)
    assert response.status_code == status
    assert set(response.json()["error"]) == {"message", "code"}


@pytest.mark.parametrize(
    ("setting", "code", "words"),
    [
        ({"processed": False}, "logprobs_mode", "--logprobs-mode processed_logprobs"),
        ({"closed_routes": {"/v1/chat/completions/render"}}, "scale_out", "--enable-scale-out"),
        ({"closed_routes": {"/weight_info"}}, "dev_mode", "VLLM_SERVER_DEV_MODE=1"),
        ({"closed_routes": {"/version"}}, "not_vllm", "kind 'openai'"),
    ],
)
def test_an_engine_with_a_wrong_setting_is_refused(
    any_proxy: Served, fake: FakeEngine, setting: dict[str, Any], code: str, words: str
) -> None:
    any_proxy.policy()
    for name, value in setting.items():
        setattr(fake, name, value)
    response = any_proxy.api("PUT", "/api/engines/e", {"policy": "pol", "base_url": fake.url})
    assert error_of(response) == (422, code)
    assert words in response.json()["error"]["message"]
    assert any_proxy.ok("GET", "/api/engines") == {"engines": []}


def test_registering_an_engine(any_proxy: Served, fake: FakeEngine) -> None:
    any_proxy.policy()
    engine = any_proxy.engine(fake)
    assert (engine["state"], engine["version"], engine["base_url"]) == ("ready", 0, fake.url)
    assert engine["capabilities"] == {
        "kind": "vllm",
        "vllm_version": "0.32.0",
        "max_model_len": 512,
        "processed_logprobs": True,
        "exact_tokens": True,
        "turn_closer": [13],
        "tools": True,
    }
    any_proxy.policy("other", model="another-model")
    response = any_proxy.api("PUT", "/api/engines/e2", {"policy": "other", "base_url": fake.url})
    assert error_of(response) == (422, "model_name")
    assert "--served-model-name another-model" in response.json()["error"]["message"]
    response = any_proxy.api("PUT", "/api/engines/e2", {"policy": "pol", "base_url": "http://127.0.0.1:9"})
    assert error_of(response) == (422, "engine_unreachable")
    response = any_proxy.api(
        "PUT", "/api/engines/e2", {"policy": "pol", "base_url": fake.url, "kind": "openai"}
    )
    assert error_of(response) == (422, "engine_kind")

    fake.label = "pol:9"
    assert any_proxy.engine(fake)["state"] == "stale"
    fake.label = "default"
    assert any_proxy.engine(fake)["state"] == "ready"
    assert error_of(any_proxy.api("DELETE", "/api/engines/eng")) == (409, "conflict")
    assert any_proxy.ok("POST", "/api/engines/eng/drain")["state"] == "draining"
    time.sleep(0.5)
    assert any_proxy.ok("GET", "/api/engines/eng")["state"] == "draining", "health checks leave it alone"
    assert any_proxy.api("DELETE", "/api/engines/eng").status_code == 204
    assert error_of(any_proxy.api("DELETE", "/api/engines/eng")) == (404, "not_found")


def test_one_server_has_one_name(any_proxy: Served, fake: FakeEngine) -> None:
    """[I2] A swap under one name would leave the other's version wrong."""
    any_proxy.policy()
    any_proxy.policy("teacher", kind="frozen")
    any_proxy.engine(fake)
    for policy, kind in (("pol", "vllm"), ("teacher", "openai")):
        body = {"policy": policy, "base_url": fake.url, "kind": kind}
        response = any_proxy.api("PUT", "/api/engines/e2", body)
        assert error_of(response) == (409, "conflict")
        assert "DELETE /api/engines/eng" in response.json()["error"]["message"]
    any_proxy.ok("POST", "/api/engines/eng/drain")
    any_proxy.ok("DELETE", "/api/engines/eng")
    any_proxy.engine(fake, "teacher", "e2", kind="openai")
    any_proxy.policy("judge", kind="frozen")
    any_proxy.engine(fake, "judge", "e3", kind="openai")


def test_a_change_that_is_committed_is_no_error(
    any_proxy: Served, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails() -> None:
        raise TimeoutError

    any_proxy.policy()
    monkeypatch.setattr(any_proxy.app.control.state.services.watch, "refresh", fails)
    assert any_proxy.engine(fake)["state"] == "ready"


def test_described_and_watched(any_proxy: Served, fake: FakeEngine) -> None:
    any_proxy.policy()
    any_proxy.engine(fake)
    _, key = any_proxy.rollout()
    any_proxy.chat(key)
    document = any_proxy.http.get("/openapi.json").json()
    undescribed = [
        f"{method} {path}"
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if not operation.get("description")
    ]
    assert undescribed == []
    health = any_proxy.http.get("/health").json()
    assert health == {
        "status": "ok",
        "span_queue": 0,
        "engines": [{"id": "eng", "policy": "pol", "state": "ready", "version": 0}],
    }
    text = any_proxy.http.get("/metrics").text
    for line in (
        'singletree_calls_total{http_status="200",stream="false"} 1.0',
        'singletree_spans_total{reason="",status="ok"} 1.0',
        'singletree_engine_state{engine="eng",policy="pol",state="ready"} 1.0',
        "singletree_span_queue_depth 0.0",
    ):
        assert line in text
