"""Text completions over a real vLLM: the route's own fields, the sampling contract, and OpenAI's client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.engine_fixture import EngineProcess
from tests.proxy.conftest import Served, serve
from tests.proxy.test_real_engine import check, policy_body
from tests.rescore import TOLERANCE, largest_gap

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def served(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(f"sqlite:///{tmp_path_factory.mktemp('completions') / 'spans.db'}") as served:
        served.ok("PUT", "/api/policies/pol", policy_body(engine))
        yield served


@pytest.fixture
def real(served: Served, base_weights: EngineProcess) -> Served:
    engine = served.ok("PUT", "/api/engines/real", {"policy": "pol", "base_url": base_weights.base_url})
    assert engine["state"] == "ready"
    return served


def complete(real: Served, key: str, **fields: Any) -> httpx.Response:
    body = {"model": "m", "prompt": "The weather in the city", "max_tokens": 8, **fields}
    return real.http.post("/v1/completions", json=body, headers={"Authorization": f"Bearer {key}"})


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["The weather", [40, 41, 42, 43], [[40, 41, 42, 43]]])
def test_a_completion_is_recorded_whole(real: Served, stream: bool, prompt: Any) -> None:
    rollout, key = real.rollout()
    with openai.OpenAI(base_url=real.url + "/v1", api_key=key, max_retries=0) as client:
        create: Any = client.completions.create
        options = {"model": "m", "prompt": prompt, "max_tokens": 9, "logprobs": 1}
        if stream:
            with create(stream=True, **options) as chunks:
                choices = [chunk.choices[0] for chunk in chunks]
        else:
            choices = create(**options).choices
    span = real.span(rollout)
    check(span)
    assert span.dialect == "completions" and span.reply is not None and span.logprobs is not None
    assert "".join(choice.text for choice in choices) == span.reply["message"]["content"]
    if isinstance(prompt, list):
        assert span.prompt_tokens is not None and span.prompt_tokens.tolist() == [40, 41, 42, 43]
    sent = [value for choice in choices if choice.logprobs for value in choice.logprobs.token_logprobs]
    assert sent == pytest.approx(span.logprobs.tolist(), abs=1e-6)
    assert choices[-1].finish_reason in ("stop", "length")


def test_the_logprob_is_that_of_the_sampling_distribution(real: Served, base_weights: EngineProcess) -> None:
    """Asked for 0 logprobs, the route gives the sampled token's own, at the policy's temperature of 0.7 [I11]."""
    rollout, key = real.rollout()
    assert complete(real, key, temperature=0.1, top_p=0.5, min_p=0.9).status_code == 200
    span = real.span(rollout)
    check(span)
    assert span.sampling["temperature"] == 0.7 and span.stripped == ["min_p", "temperature", "top_p"]
    assert span.prompt_tokens is not None and span.completion_tokens is not None and span.logprobs is not None
    prompt, completion = span.prompt_tokens.tolist(), span.completion_tokens.tolist()
    gap = largest_gap(base_weights.model, prompt, completion, span.logprobs, temperature=0.7)
    assert gap < TOLERANCE


def test_several_choices_are_served_and_marked(real: Served) -> None:
    rollout, key = real.rollout()
    response = complete(real, key, prompt=["one", "two"], n=2, best_of=4)
    assert [choice["index"] for choice in response.json()["choices"]] == [0, 1, 2, 3]
    span = real.span(rollout)
    assert span.untrainable_reason == "multiple_choices" and "best_of" in span.stripped
    assert span.reply is not None and len(span.reply["choices"]) == 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompt", ["The weather in the city", [40, 41, 42]])
def test_an_echo_comes_with_the_prompt(
    real: Served, base_weights: EngineProcess, stream: bool, prompt: Any
) -> None:
    """As the engine itself echoes where it is not asked for token ids."""
    rollout, key = real.rollout()
    response = complete(real, key, prompt=prompt, echo=True, logprobs=0, stream=stream, max_tokens=4)
    span = real.span(rollout)
    assert span.untrainable_reason == "echo" and span.reply is not None and span.prompt_tokens is not None
    assert span.completion_tokens is not None and span.logprobs is not None
    assert len(span.completion_tokens) == len(span.logprobs)
    body = {"model": base_weights.served_name, "prompt": prompt, "echo": True, "max_tokens": 0}
    plain = httpx.post(base_weights.base_url + "/v1/completions", json=body, trust_env=False, timeout=60)
    expected = plain.json()["choices"][0]["text"] + span.reply["message"]["content"]
    if not stream:
        choice = response.json()["choices"][0]
        assert choice["text"] == expected
        values = choice["logprobs"]["token_logprobs"]
        assert values[0] is None and len(values) == len(span.prompt_tokens) + len(span.logprobs)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"prompt": "long " * 3000}, "maximum context length"),
        ({"prompt": ""}, ""),
        ({"prompt": [10**9]}, "vocab"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"suffix": "end"}, "suffix"),
        ({"n": 0}, "n must be"),
        ({"stream": True, "prompt_logprobs": 2}, "prompt_logprobs"),
        ({"logprobs": -5}, "logprobs"),
    ],
)
def test_what_the_engine_refuses(real: Served, fields: dict[str, Any], words: str) -> None:
    rollout, key = real.rollout()
    response = complete(real, key, **fields)
    assert response.status_code == 400, response.text
    assert words in response.json()["error"]["message"]
    assert real.span(rollout).status == "refused"


def test_prompt_logprobs_go_to_those_who_ask(real: Served) -> None:
    rollout, key = real.rollout()
    choice = complete(real, key, prompt_logprobs=1).json()["choices"][0]
    span = real.span(rollout)
    check(span)
    assert span.prompt_tokens is not None and len(choice["prompt_logprobs"]) == len(span.prompt_tokens)
    assert choice["logprobs"] is None and "token_ids" not in choice


def test_null_max_tokens_is_the_default(real: Served) -> None:
    rollout, key = real.rollout()
    assert complete(real, key, max_tokens=None).status_code == 200
    span = real.span(rollout)
    assert span.completion_tokens is not None and len(span.completion_tokens) <= 16


def test_the_fake_speaks_like_the_real_one(real: Served, base_weights: EngineProcess) -> None:
    from tests.proxy.fake_engine import FakeEngine, Fault, as_text

    body = {"model": base_weights.served_name, "prompt": "hi", "return_token_ids": True, "logprobs": 0}
    reply = httpx.post(
        base_weights.base_url + "/v1/completions", json={**body, "max_tokens": 3}, trust_env=False, timeout=60
    ).json()
    fake = as_text(FakeEngine().reply(body, Fault("none")))
    assert fake.keys() <= reply.keys()
    assert fake["choices"][0].keys() <= reply["choices"][0].keys()
    assert fake["choices"][0]["logprobs"].keys() == reply["choices"][0]["logprobs"].keys()
