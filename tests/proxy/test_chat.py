"""Model calls over a fake engine: what the engine gets, what the caller gets, what is recorded."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from spanlog.states import Delivery, SpanStatus
from tests.proxy.conftest import Served, chat_body, serve
from tests.proxy.fake_engine import MODEL, PROMPT_IDS, TOKENS, FakeEngine

TEXT = "".join(text for _, text, _ in TOKENS)


def events(response: httpx.Response) -> list[Any]:
    lines = [line for line in response.text.split("\n\n") if line]
    assert all(line.startswith("data: ") for line in lines)
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line[6:]) for line in lines[:-1]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_is_answered_plainly_and_recorded_whole(ready: Served, fake: FakeEngine, stream: bool) -> None:
    rollout, key = ready.rollout()
    response = ready.chat(key, stream=stream, temperature=0.3, seed=1)
    assert response.status_code == 200
    if stream:
        chunks = events(response)
        assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == TEXT
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        assert {chunk["model"] for chunk in chunks} == {"my-model"}
    else:
        reply = response.json()
        assert reply["choices"][0]["message"]["content"] == TEXT
        assert reply["model"] == "my-model"
    for extra in (
        "token_ids",
        "prompt_logprobs",
        "kv_transfer_params",
        "stop_reason",
        "routed_experts",
        '"logprob"',
    ):
        assert extra not in response.text
    assert ("usage" in response.text) is not stream

    span = ready.span(rollout)
    assert (span.status, span.delivery, span.trainable, span.untrainable_reason) == (
        "ok",
        "sampled",
        True,
        None,
    )
    assert span.prompt_tokens is not None and span.prompt_tokens.tolist() == PROMPT_IDS
    assert span.completion_tokens is not None and span.completion_tokens.tolist() == [
        token for token, _, _ in TOKENS
    ]
    assert span.logprobs is not None and span.logprobs.tolist() == [logprob for _, _, logprob in TOKENS]
    assert span.version_low is not None and span.version_low.tolist() == [0] * len(TOKENS)
    assert span.version_high is not None and span.version_high.tolist() == [0] * len(TOKENS)
    assert span.request == chat_body(stream=stream, temperature=0.3, seed=1)
    assert span.reply is not None
    assert span.reply["message"] == {"role": "assistant", "content": TEXT}
    assert (span.finish_reason, span.stream, span.http_status) == ("stop", stream, 200)
    assert span.stripped == ["seed", "temperature"]
    assert span.sampling["temperature"] == 1.0

    (sent,) = fake.requests
    assert (sent["model"], sent["temperature"], sent["return_token_ids"], sent["logprobs"]) == (
        MODEL,
        1.0,
        True,
        True,
    )
    assert "seed" not in sent
    (headers,) = fake.headers[-1:]
    assert key not in str(headers), "the engine never sees an agent's key"


def test_what_the_caller_asks_for_it_gets(ready: Served) -> None:
    _, key = ready.rollout()
    reply = ready.chat(key, logprobs=True, return_token_ids=True).json()
    assert reply["prompt_token_ids"] == PROMPT_IDS
    assert (
        len(reply["choices"][0]["token_ids"])
        == len(reply["choices"][0]["logprobs"]["content"])
        == len(TOKENS)
    )
    streamed = events(ready.chat(key, stream=True, stream_options={"include_usage": True}, logprobs=True))
    assert streamed[-1]["usage"]["completion_tokens"] == len(TOKENS)
    assert sum(len((c["choices"][0]["logprobs"] or {}).get("content", ())) for c in streamed[:-1]) == len(
        TOKENS
    )


def test_evaluation_follows_the_same_contract(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout(purpose="eval")
    ready.chat(key, temperature=0.1)
    assert fake.requests[-1]["temperature"] == 1.0
    assert ready.span(rollout).trainable


def test_forced_calls_are_served_and_marked(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    assert ready.chat(key, tool_choice="required").status_code == 200
    assert fake.requests[-1]["tool_choice"] == "required"
    span = ready.span(rollout)
    assert (span.trainable, span.untrainable_reason) == (False, "forced_tool_choice")
    assert 'reason="forced_tool_choice"' in ready.http.get("/metrics").text


def test_a_frozen_policy_passes_everything_on(proxy: Served, fake: FakeEngine) -> None:
    proxy.policy("teacher", kind="frozen")
    proxy.engine(fake, "teacher", "t1", kind="openai")
    rollout, key = proxy.rollout("teacher")
    fields = {"seed": 3, "temperature": 0.2, "tool_choice": "required", "parallel_tool_calls": False}
    assert proxy.chat(key, **fields).status_code == 200
    assert fake.requests[-1] == chat_body(**fields) | {"model": MODEL}
    span = proxy.span(rollout)
    assert (span.trainable, span.stripped, span.sampling) == (True, [], {"temperature": 0.2})


@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client(ready: Served, stream: bool) -> None:
    _, key = ready.rollout()
    with openai.OpenAI(base_url=ready.url + "/v1", api_key=key, max_retries=0) as client:
        messages: Any = [{"role": "user", "content": "hi"}]
        if stream:
            with client.chat.completions.create(model="m", messages=messages, stream=True) as chunks:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        else:
            completion = client.chat.completions.create(model="m", messages=messages)
            text, usage = completion.choices[0].message.content, completion.usage
            assert usage is not None and usage.completion_tokens == len(TOKENS)
        assert text == TEXT
        assert [model.id for model in client.models.list()] == ["pol"]
        assert client.models.retrieve("any").id == "any"


@pytest.mark.parametrize(
    "where", ["Authorization: Bearer {}", "x-api-key: {}", "x-goog-api-key: {}", "/r/{}/v1/chat/completions"]
)
def test_a_key_may_come_in_any_of_these_ways(ready: Served, where: str) -> None:
    rollout, key = ready.rollout()
    path, headers = "/v1/chat/completions", {}
    if where.startswith("/"):
        path = where.format(key)
    else:
        name, _, value = where.format(key).partition(": ")
        headers[name] = value
    assert ready.http.post(path, json=chat_body(), headers=headers).status_code == 200
    assert ready.span(rollout).status == SpanStatus.OK


def test_keys_open_what_they_are_for_and_nothing_else(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    for bad, status, code in (
        ("st-agent-nobody", 401, "invalid_api_key"),
        ("", 401, "no_api_key"),
        ("st-runner-test", 403, "wrong_scope"),
        ("st-admin-test", 403, "wrong_scope"),
    ):
        response = ready.chat(bad)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert ready.api("GET", f"/api/rollouts/{rollout}", key=key).status_code == 403
    assert (
        ready.api("POST", f"/api/rollouts/{rollout}/finish", {"state": "succeeded"}, key=key).status_code
        == 403
    )
    again = ready.ok("POST", f"/api/rollouts/{rollout}/claim", {"runner": "r"})["key"]
    assert ready.chat(key).status_code == 401, "claiming again ends the earlier key"
    ready.ok("POST", f"/api/rollouts/{rollout}/finish", {"state": "succeeded"})
    response = ready.chat(again)
    assert (response.status_code, response.json()["error"]["code"]) == (409, "rollout_ended")
    assert ready.spans(rollout) == []
    assert fake.requests == []


def test_a_reply_that_comes_after_the_end_is_stored_as_late(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()

    async def finish() -> None:
        import asyncio

        await asyncio.to_thread(ready.ok, "POST", f"/api/rollouts/{rollout}/finish", {"state": "failed"})

    fake.before_finish = finish
    ready.chat(key)
    span = ready.span(rollout)
    assert (span.delivery, span.trainable, span.untrainable_reason) == (Delivery.LATE, False, "late")


@pytest.mark.parametrize(
    ("content", "status", "code"),
    [(b"{", 400, "invalid_request"), (b"[1]", 400, "invalid_request"), (b"x" * 2**26, 413, "body_too_large")],
)
def test_bad_bodies(ready: Served, fake: FakeEngine, content: bytes, status: int, code: str) -> None:
    rollout, key = ready.rollout()
    response = ready.http.post("/v1/chat/completions", content=content, headers={"x-api-key": key})
    error = response.json()["error"]
    assert (response.status_code, error["code"], set(error)) == (
        status,
        code,
        {"message", "type", "param", "code"},
    )
    assert ready.spans(rollout) == [] and fake.requests == []


def test_a_content_part_of_no_known_type(ready: Served, fake: FakeEngine) -> None:
    ready.policy(mode="observe")
    rollout, key = ready.rollout()
    messages = [{"role": "user", "content": [{"type": ["text"], "text": "hi"}]}]
    assert ready.chat(key, messages=messages).status_code == 200
    assert fake.requests[-1]["messages"] == messages, "what it is worth, the engine says"
    assert ready.span(rollout).untrainable_reason == "media"


def test_a_request_too_deep_to_be_passed_on(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    deep = b"[" * 300 + b"]" * 300
    body = b'{"messages": [{"role": "user", "content": "hi"}], "metadata": ' + deep + b"}"
    response = ready.http.post("/v1/chat/completions", content=body, headers={"x-api-key": key})
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_request")
    assert ready.spans(rollout) == [] and fake.requests == []


def test_other_routes_and_hosts(ready: Served) -> None:
    _, key = ready.rollout()
    assert ready.http.post("/v1/embeddings", headers={"x-api-key": key}).status_code == 404
    assert ready.http.get("/v1/chat/completions", headers={"x-api-key": key}).status_code == 405
    assert ready.http.get("/health", headers={"host": "evil.example"}).status_code == 421
    assert ready.http.get("/health", headers={"host": "127.0.0.2:1"}).status_code == 421
    compressed = ready.http.post(
        "/v1/chat/completions", content=b"x", headers={"x-api-key": key, "content-encoding": "gzip"}
    )
    assert compressed.status_code == 415


def test_the_address_that_it_listens_on_is_no_other_machine(sqlite_url: str) -> None:
    with serve(sqlite_url, host="127.0.0.2") as proxy:
        assert proxy.http.get("/health", headers={"host": "127.0.0.2:8700"}).status_code == 200
        assert proxy.http.get("/health", headers={"host": "evil.example"}).status_code == 421


def test_no_engine(proxy: Served) -> None:
    proxy.policy()
    _, key = proxy.rollout()
    response = proxy.chat(key)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_engine")
    assert response.headers["retry-after"] == "2"
    assert "singletree engine start" in response.json()["error"]["message"]
