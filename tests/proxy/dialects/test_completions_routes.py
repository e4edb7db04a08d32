"""Text completions over a fake engine: OpenAI's client, bad bodies, faults of the engine."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from tests.proxy.conftest import Served
from tests.proxy.fake_engine import PROMPT_IDS, TOKENS, FakeEngine, Fault

TEXT = "".join(text for _, text, _ in TOKENS)
PATH = "/v1/completions"


def post(ready: Served, key: str, body: Any) -> Any:
    options: dict[str, Any] = {"content": body} if isinstance(body, bytes) else {"json": body}
    return ready.http.post(PATH, headers={"Authorization": f"Bearer {key}"}, **options)


def client(ready: Served, key: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=ready.url + "/v1", api_key=key, max_retries=0)


@pytest.mark.parametrize("stream", [False, True])
def test_openais_client_gets_an_answer(ready: Served, fake: FakeEngine, stream: bool) -> None:
    rollout, key = ready.rollout()
    with client(ready, key) as openai_client:
        create: Any = openai_client.completions.create
        if stream:
            with create(model="m", prompt="hi", stream=True, temperature=0.2) as chunks:
                text = "".join(chunk.choices[0].text for chunk in chunks)
        else:
            reply = create(model="m", prompt="hi", temperature=0.2)
            text = reply.choices[0].text
            assert (reply.object, reply.model, reply.usage.completion_tokens) == ("text_completion", "m", 4)
    span = ready.span(rollout)
    assert text == TEXT and (span.reply or {})["message"] == {"role": "assistant", "content": TEXT}
    assert (span.dialect, span.stream, span.trainable, span.untrainable_reason) == (
        "completions",
        stream,
        True,
        None,
    )
    assert span.prompt_tokens is not None and span.prompt_tokens.tolist() == PROMPT_IDS
    assert span.completion_tokens is not None and span.logprobs is not None
    assert span.completion_tokens.tolist() == [token for token, _, _ in TOKENS]
    assert span.logprobs.tolist() == [logprob for _, _, logprob in TOKENS]
    (sent,) = fake.requests
    assert (sent["prompt"], sent["logprobs"], sent["temperature"], sent["min_p"]) == ("hi", 0, 1.0, 0.0)
    assert span.upstream_id == "cmpl-1"


@pytest.mark.parametrize("stream", [False, True])
def test_nothing_is_sent_that_was_not_asked_for(ready: Served, stream: bool) -> None:
    _, key = ready.rollout()
    text = post(ready, key, {"model": "m", "prompt": "hi", "stream": stream}).text
    for extra in ("token_ids", "token_logprobs", "stop_reason", "prompt_logprobs", "routed_experts", "delta"):
        assert extra not in text
    assert ("usage" in text) is not stream


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"prompt": "a", "x": ' + b"[" * 300 + b"]" * 300 + b"}",
        {},
        {"prompt": []},
        {"prompt": 5},
        {"prompt": "a", "n": "x"},
    ],
)
def test_bad_bodies(ready: Served, fake: FakeEngine, body: Any) -> None:
    rollout, key = ready.rollout()
    response = post(ready, key, body)
    assert response.status_code == 400, response.text
    assert response.json()["error"]["type"] == "invalid_request_error"
    assert fake.requests == [] and ready.spans(rollout) == []


def test_unknown_keys_and_methods(ready: Served) -> None:
    response = post(ready, "st-nobody", {"prompt": "a"})
    assert (response.status_code, response.json()["error"]["type"]) == (401, "authentication_error")
    assert ready.http.get(PATH, headers={"x-api-key": "k"}).status_code == 405


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("missing_ids", "token_ids_missing"),
        ("nan", "logprob_not_finite"),
        ("null", "logprob_not_finite"),
        ("masked", "logprob_sentinel"),
        ("positive", "logprob_positive"),
        ("extra_logprob", "logprobs_count"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_odd_tokens_are_marked(ready: Served, fake: FakeEngine, stream: bool, kind: str, reason: str) -> None:
    rollout, key = ready.rollout()
    fake.fault = Fault(kind)
    assert post(ready, key, {"prompt": "hi", "stream": stream}).status_code == 200
    assert ready.span(rollout).untrainable_reason == reason


def test_a_stream_that_breaks_ends_with_an_error(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    fake.fault = Fault("reset_after", argument=2)
    response = post(ready, key, {"prompt": "hi", "stream": True})
    events = [json.loads(event[6:]) for event in response.text.split("\n\n") if event]
    assert [event["choices"][0]["text"] for event in events[:-1]] == ["Hel", "lo "]
    assert events[-1]["error"]["code"] == "engine_broke_off"
    assert ready.span(rollout).status == "upstream_error"


def test_a_reply_without_texts_is_no_completion(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    fake.fault = Fault("raw", argument=[b'data: {"choices": [{"index": 0, "delta": {"content": "a"}}]}\n\n'])
    response = post(ready, key, {"prompt": "hi", "stream": True})
    assert response.status_code == 502 and "no completion" in response.json()["error"]["message"]
    assert ready.span(rollout).status == "upstream_error"
