"""The proxy over a real vLLM with a tiny random model."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from spanlog.records import SpanRecord
from tests.engine_fixture import EngineProcess
from tests.proxy.conftest import Served, chat_body, serve, wait_for

pytestmark = pytest.mark.engine

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "(Rome|Oslo)"\}\}\n</tool_call>'
"""A grammar that makes a random model call the tool: the call is real, its tokens are untrainable."""


@pytest.fixture(scope="module")
def proxy(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("real")
    with serve(f"sqlite:///{folder / 'spans.db'}") as served:
        yield served


@pytest.fixture
def real(proxy: Served, base_weights: EngineProcess) -> Served:
    """A training policy at temperature 0.7 on the warm engine, with its base weights."""
    proxy.ok("PUT", "/api/policies/pol", policy_body(base_weights))
    body = {"policy": "pol", "base_url": base_weights.base_url}
    engine = proxy.ok("PUT", "/api/engines/real", body)
    assert (engine["state"], engine["version"]) == ("ready", 0)
    return proxy


def policy_body(engine: EngineProcess) -> dict[str, Any]:
    return {"kind": "train", "model": engine.served_name, "sampling": {"temperature": 0.7}}


def check(span: SpanRecord) -> None:
    """All that makes tokens trainable."""
    assert (span.status, span.trainable, span.untrainable_reason) == ("ok", True, None)
    assert span.prompt_tokens is not None and len(span.prompt_tokens) > 3
    assert span.completion_tokens is not None and span.logprobs is not None and span.version_low is not None
    assert len(span.completion_tokens) == len(span.logprobs) == len(span.version_low) > 0
    assert set(span.version_low.tolist()) == {0}
    assert span.reply is not None and span.reply["usage"]["completion_tokens"] == len(span.completion_tokens)


def test_what_registration_found(real: Served) -> None:
    found = real.ok("GET", "/api/engines/real")["capabilities"]
    assert found["vllm_version"].startswith("0.32")
    assert found["processed_logprobs"] and found["exact_tokens"] and found["tools"]
    assert found["max_model_len"] > 0


def test_raw_logprobs_would_be_noticed(real: Served, base_weights: EngineProcess) -> None:
    """The probe tells the modes apart by behaviour: without top_k the runner-up has a real value."""
    from proxy.engine.register import _Prober

    with httpx.Client(base_url=base_weights.base_url, trust_env=False, timeout=60) as client:
        prober = _Prober(client, base_weights.served_name)
        assert prober._is_processed(prober._chat({"top_k": 1, "temperature": 1.0, "top_logprobs": 2}))
        assert not prober._is_processed(prober._chat({"temperature": 1.0, "top_logprobs": 2}))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fields", [{}, {"tools": [WEATHER], "parallel_tool_calls": False}, {"stop": ["e"]}])
def test_tokens_are_whole_and_valid(real: Served, stream: bool, fields: dict[str, Any]) -> None:
    rollout, key = real.rollout()
    response = real.chat(key, stream=stream, max_tokens=24, **fields)
    assert response.status_code == 200, response.text
    assert "token_ids" not in response.text and '"logprob"' not in response.text
    span = real.span(rollout)
    check(span)
    if not stream:
        assert response.json()["choices"][0]["message"]["content"] == (span.reply or {})["message"]["content"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_tool_call_is_parsed_and_its_tokens_are_kept(real: Served, stream: bool) -> None:
    """vLLM's parser withholds the tokens of the call; they come all the same."""
    rollout, key = real.rollout()
    with openai.OpenAI(base_url=real.url + "/v1", api_key=key, max_retries=0) as client:
        create: Any = client.chat.completions.create
        options = {
            "model": "m",
            "messages": [{"role": "user", "content": "weather?"}],
            "tools": [WEATHER],
            "max_tokens": 200,
            "extra_body": {"structured_outputs": {"regex": CALL}},
        }
        if stream:
            with create(stream=True, **options) as chunks:
                arguments = "".join(
                    call.function.arguments or ""
                    for chunk in chunks
                    for call in chunk.choices[0].delta.tool_calls or ()
                )
        else:
            arguments = create(**options).choices[0].message.tool_calls[0].function.arguments
    assert json.loads(arguments)["city"] in ("Rome", "Oslo")
    span = real.span(rollout)
    assert span.untrainable_reason == "structured_outputs", "a grammar forced them"
    assert span.completion_tokens is not None and span.logprobs is not None and span.reply is not None
    assert len(span.completion_tokens) == len(span.logprobs) == span.reply["usage"]["completion_tokens"]
    call = span.reply["message"]["tool_calls"][0]["function"]
    assert (call["name"], json.loads(call["arguments"])) == ("weather", json.loads(arguments))


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_leaves_frees_the_engine(
    real: Served, base_weights: EngineProcess, stream: bool
) -> None:
    # A frozen policy, whose requests pass as they are: ignore_eos makes a call that would go on for long.
    real.ok("PUT", "/api/policies/still", {"kind": "frozen", "model": base_weights.served_name})
    real.ok("PUT", "/api/engines/real", {"policy": "still", "base_url": base_weights.base_url})
    rollout, key = real.rollout("still")
    seen = threading.Event()

    def running() -> float:
        text = httpx.get(base_weights.base_url + "/metrics", trust_env=False).text
        lines = [line for line in text.splitlines() if line.startswith("vllm:num_requests_running")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def leave() -> None:
        body = chat_body(stream=stream, max_tokens=1900, ignore_eos=True)
        try:
            with httpx.stream(
                "POST",
                real.url + "/v1/chat/completions",
                json=body,
                headers={"x-api-key": key},
                timeout=httpx.Timeout(10, read=0.5),
                trust_env=False,
            ) as response:
                pieces = response.iter_raw()  # dropping it would close the connection
                next(pieces)
                seen.wait(10)
        except httpx.ReadTimeout:
            pass

    caller = threading.Thread(target=leave)
    caller.start()
    wait_for(lambda: running() == 1)
    seen.set()
    caller.join()
    wait_for(lambda: running() == 0, timeout_s=3)
    span = real.span(rollout)
    assert (span.status, span.delivery, span.trainable) == ("aborted", "aborted", False)
    if stream:
        assert span.completion_tokens is not None and len(span.completion_tokens) > 0, "what came is kept"


@pytest.mark.parametrize(("asked", "stripped"), [(65536, ["max_tokens"]), (2000, [])])
def test_more_tokens_than_the_window_leaves(real: Served, asked: int, stripped: list[str]) -> None:
    rollout, key = real.rollout()
    messages = [{"role": "user", "content": "word " * 300}]
    assert real.chat(key, max_tokens=asked, stop=["e"], messages=messages).status_code == 200
    span = real.span(rollout)
    check(span)
    assert span.stripped == stripped


def test_refusals_keep_their_words(real: Served) -> None:
    rollout, key = real.rollout()
    response = real.chat(key, max_tokens=5, messages=[{"role": "user", "content": "long " * 3000}])
    assert response.status_code == 400
    assert "maximum context length" in response.json()["error"]["message"]
    assert real.span(rollout).status == "refused"


def test_a_wrong_model_name_is_refused(real: Served, base_weights: EngineProcess) -> None:
    real.ok("PUT", "/api/policies/other", {"kind": "train", "model": "nobody"})
    body = {"policy": "other", "base_url": base_weights.base_url}
    response = real.api("PUT", "/api/engines/e2", body)
    assert response.status_code == 422
    assert "--served-model-name nobody" in response.json()["error"]["message"]


def test_the_fake_speaks_like_the_real_one(real: Served, base_weights: EngineProcess) -> None:
    """The faults are tested on a fake; its replies must have the real one's fields."""
    from tests.proxy.fake_engine import FakeEngine, Fault

    body = {**chat_body(), "model": base_weights.served_name, "return_token_ids": True, "logprobs": True}
    body |= {"max_tokens": 3}
    reply = httpx.post(
        base_weights.base_url + "/v1/chat/completions", json=body, trust_env=False, timeout=60
    ).json()
    fake = FakeEngine().reply(body, Fault("none"))
    assert fake.keys() <= reply.keys()
    assert fake["choices"][0].keys() <= reply["choices"][0].keys()
    assert (
        fake["choices"][0]["logprobs"]["content"][0].keys()
        <= reply["choices"][0]["logprobs"]["content"][0].keys()
    )
