"""What the log holds of a call through the proxy to a real vLLM, against transformers on the same weights.

The model is overfitted to one tool call, in seconds, so that the tool parser has something to find.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from spanlog.records import SpanRecord
from tests.end_to_end.world import Call, Loop, run_loop
from tests.engine_fixture import EngineProcess
from tests.proxy.conftest import wait_for
from tests.rescore import TOLERANCE, largest_gap, reference_logprobs
from tests.tiny_model import build_tiny_model

pytestmark = pytest.mark.engine

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
            "additionalProperties": False,
        },
    },
}
QUESTION = [{"role": "user", "content": "the user adds a number and stops."}]
ANSWER = '<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call><|im_end|>'


def loosened(tool: dict[str, Any]) -> dict[str, Any]:
    """As the proxy sends it: a strict tool would make vLLM sample under a grammar."""
    return tool | {"function": {name: value for name, value in tool["function"].items() if name != "strict"}}


@pytest.fixture(scope="module")
def caller_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model, overfitted to answer QUESTION with ANSWER."""
    folder = build_tiny_model(tmp_path_factory.mktemp("caller") / "v1", seed=3)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    prompt = tokenizer.apply_chat_template(
        QUESTION, tools=[loosened(ADD)], tokenize=False, add_generation_prompt=True
    )
    start = tokenizer(prompt).input_ids
    tokens = torch.tensor([start + tokenizer(ANSWER).input_ids])
    labels = tokens.clone()
    labels[:, : len(start)] = -100
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(300):
        loss = model(tokens, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if loss.item() < 1e-3:
            break
    assert loss.item() < 3e-3, "nine answers in ten are whole tool calls"
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=[1.0, 0.7], ids=["T=1", "T=0.7"])
def loop(
    request: pytest.FixtureRequest,
    engine: EngineProcess,
    caller_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Loop]:
    """A policy sampled at one temperature, whose engine was published the model that calls tools."""
    with run_loop(tmp_path_factory.mktemp("loop"), temperature=request.param) as made:
        made.add_engine("eng", engine.base_url)
        assert made.publish(caller_model).loaded == 1
        wait_for(lambda: made.engine("eng")["state"] == "ready")
        time.sleep(
            0.3
        )  # past the guard, within which a version is a range (here with what the engine served before)
        yield made


def check_span(span: SpanRecord, folder: Path, temperature: float) -> None:
    """Ids, logprobs and versions of one span are what the published weights say."""
    assert (span.status, span.trainable, span.untrainable_reason) == ("ok", True, None)
    assert span.prompt_tokens is not None and span.completion_tokens is not None and span.logprobs is not None
    assert span.sampling["temperature"] == temperature
    gap = largest_gap(
        folder, span.prompt_tokens.tolist(), span.completion_tokens.tolist(), span.logprobs, temperature
    )
    assert gap < TOLERANCE
    assert span.version_low is not None and span.version_high is not None
    assert set(span.version_low.tolist()) == set(span.version_high.tolist()) == {1}


def ask_for_a_tool_call(loop: Loop, stream: bool) -> tuple[str, Any]:
    """One call through the official client; returns the rollout and the assistant's message."""
    rollout, key = loop.rollout()
    arguments: dict[str, Any] = {"messages": QUESTION, "tools": [ADD], "max_tokens": 80, "temperature": 0.1}
    with (
        httpx.Client(trust_env=False) as http,
        openai.OpenAI(
            base_url=f"{loop.proxy.url}/v1", api_key=key, max_retries=0, http_client=http
        ) as client,
    ):
        if not stream:
            return rollout, client.chat.completions.create(model="any", **arguments).choices[0].message
        with client.chat.completions.stream(model="any", **arguments) as events:
            return rollout, events.get_final_completion().choices[0].message


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_tool_call_is_logged_token_by_token(loop: Loop, caller_model: Path, stream: bool) -> None:
    """The harness sees a tool call and nothing of tokens. Sampling may stray from the answer, so it may ask again."""
    for _ in range(8):
        rollout, message = ask_for_a_tool_call(loop, stream)
        if message.tool_calls:
            break
    call = message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("add", {"a": 1, "b": 2})
    span = loop.proxy.span(rollout)
    check_span(span, caller_model, span.sampling["temperature"])
    tokenizer = AutoTokenizer.from_pretrained(caller_model)
    assert span.completion_tokens is not None and span.prompt_tokens is not None
    assert tokenizer.decode(span.completion_tokens) == ANSWER, (
        "also what the parser took out, and the end of turn"
    )
    rendered = tokenizer.apply_chat_template(
        QUESTION, tools=[loosened(ADD)], tokenize=False, add_generation_prompt=True
    )
    assert tokenizer.decode(span.prompt_tokens) == rendered
    assert set(span.stripped) >= {"temperature", "tools.strict"}


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_conversation_with_results_of_tools_is_logged(loop: Loop, caller_model: Path, stream: bool) -> None:
    """Far from what the model was fitted to, so its distribution is wide."""
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1, "b": 2}'}}
    messages = [
        {"role": "system", "content": "Answer as JSON."},
        *QUESTION,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "3"},
    ]
    body = {"model": "any", "messages": messages, "tools": [ADD], "max_tokens": 200, "stream": stream}
    made = Call(loop, body).start().join()
    assert made.status == 200
    assert "token_ids" not in made.text and '"logprobs":{' not in made.text
    span = made.span()
    check_span(span, caller_model, span.sampling["temperature"])
    assert span.completion_tokens is not None and len(span.completion_tokens) >= 1


def test_a_stream_in_flight_during_a_publish_is_labelled_by_what_sampled_it(
    base_weights: EngineProcess, tmp_path: Path
) -> None:
    """[I2] through the proxy: the agent's stream completes, and each token's version is the one that explains it."""
    trained = build_tiny_model(tmp_path / "v1", seed=1)
    with run_loop(tmp_path, guard_s=0.5, temperature=1.0) as made:
        made.add_engine("eng", base_weights.base_url)
        body = {"messages": QUESTION, "max_tokens": 600, "stream": True}
        with ThreadPoolExecutor() as pool:
            publishing = pool.submit(made.publish, trained)
            calls, wholes = [], []
            while not publishing.done() or len(calls) < 4:
                calls.append(Call(made, body).start())
                wholes.append(Call(made, body | {"stream": False}).start())
                time.sleep(0.3)
            publishing.result()
        spans = [call.join().span() for call in calls]
        crossing = [span for span in spans if {0, 1} <= set(unpacked(span.version_low))]
        assert crossing, "no stream was in flight"
        for span in spans:
            assert (span.status, span.trainable) == ("ok", True)
            check_versions(span, [base_weights.model, trained])
        for span in (call.join().span() for call in wholes):
            assert len({*unpacked(span.version_low)}) == len({*unpacked(span.version_high)}) == 1
            check_versions(span, [base_weights.model, trained])


def unpacked(values: np.ndarray | None) -> list[int]:
    assert values is not None
    return values.tolist()


def check_versions(span: SpanRecord, folders: list[Path]) -> None:
    """Each token's logprob is that of the version that it is labelled with, or of one within its range."""
    assert span.prompt_tokens is not None and span.completion_tokens is not None and span.logprobs is not None
    assert span.version_low is not None and span.version_high is not None
    prompt, completion = span.prompt_tokens.tolist(), span.completion_tokens.tolist()
    gaps = np.stack(
        [np.abs(reference_logprobs(folder, prompt, completion) - span.logprobs) for folder in folders]
    )
    exact = span.version_low == span.version_high
    assert (gaps[span.version_low[exact], np.flatnonzero(exact)] < TOLERANCE).all()
    assert (gaps.min(axis=0) < TOLERANCE).all()


def test_a_call_during_a_publish_waits_and_is_answered(base_weights: EngineProcess, tmp_path: Path) -> None:
    """No request on a healthy engine fails because of a swap, also not one that arrives in the middle."""
    first, second = build_tiny_model(tmp_path / "v1", seed=1), build_tiny_model(tmp_path / "v2", seed=2)
    with run_loop(tmp_path, temperature=1.0) as made:
        made.add_engine("eng", base_weights.base_url)
        calls: list[Call] = []
        for expected, path in enumerate([first, second, first, second]):
            calls += [Call(made, {"messages": QUESTION, "max_tokens": 20}).start() for _ in range(4)]
            made.publish(path, expected)
            time.sleep(0.05)
        assert [call.join().status for call in calls] == [200] * 16
        assert all(call.span().trainable for call in calls)
