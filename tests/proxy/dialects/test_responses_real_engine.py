"""The Responses API over a real vLLM with a tiny random model, called by the official client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from tests.engine_fixture import WINDOW, EngineProcess
from tests.proxy.conftest import Served, serve

pytestmark = pytest.mark.engine

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "weather",
    "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
}
PATCH: dict[str, Any] = {"type": "custom", "name": "patch", "description": "Takes a patch as it is."}
SPACE: dict[str, Any] = {"type": "namespace", "name": "crm", "description": "", "tools": [WEATHER]}
CALLS = {
    "weather": r'<tool_call>\n\{"name": "weather", "arguments": \{"city": "(Rome|Oslo)"\}\}\n</tool_call>',
    "patch": r'<tool_call>\n\{"name": "patch", "arguments": \{"input": "a\\n\\"(b|c)\\""\}\}\n</tool_call>',
    "crm": r'<tool_call>\n\{"name": "crm__weather", "arguments": \{"city": "(Rome|Oslo)"\}\}\n</tool_call>',
}
"""Grammars that make a random model call each tool: the calls are real, their tokens are untrainable."""


@pytest.fixture(scope="module")
def proxy(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("real")
    with serve(f"sqlite:///{folder / 'spans.db'}") as served:
        yield served


@pytest.fixture
def real(proxy: Served, base_weights: EngineProcess) -> Served:
    proxy.ok("PUT", "/api/policies/pol", {"kind": "train", "model": base_weights.served_name})
    proxy.ok("PUT", "/api/engines/real", {"policy": "pol", "base_url": base_weights.base_url})
    return proxy


@pytest.fixture
def agent(real: Served) -> Iterator[tuple[str, Any]]:
    rollout, key = real.rollout()
    with openai.OpenAI(base_url=real.url + "/v1", api_key=key, max_retries=0) as client:
        yield rollout, client


def ask(client: Any, *, stream: bool, **fields: Any) -> Any:
    """The response, streamed or not."""
    fields = {"model": "m", "input": "hi", "max_output_tokens": 24, **fields}
    if not stream:
        return client.responses.create(**fields)
    with client.responses.create(**fields, stream=True) as events:
        return list(events)[-1].response


@pytest.mark.parametrize("stream", [False, True])
def test_text_and_its_tokens(real: Served, agent: tuple[str, Any], stream: bool) -> None:
    rollout, client = agent
    include = ["message.output_text.logprobs"]
    reply = ask(client, stream=stream, instructions="Be brief", tools=[WEATHER], include=include)
    span = real.span(rollout)
    assert (span.dialect, span.trainable, span.untrainable_reason) == ("responses", True, None)
    assert span.completion_tokens is not None and span.prompt_tokens is not None
    assert reply.usage.output_tokens == len(span.completion_tokens) > 0
    assert reply.usage.input_tokens == len(span.prompt_tokens)
    assert reply.output_text == (span.reply or {})["message"]["content"]
    expected = "completed" if span.finish_reason == "stop" else "incomplete"
    assert (reply.status, reply.output[-1].status) == (expected, expected)
    if expected == "incomplete":
        assert reply.incomplete_details.reason == "max_output_tokens"
    logged = [] if span.logprobs is None else [round(float(value), 4) for value in span.logprobs]
    for entry in reply.output[0].content[0].logprobs:
        assert round(entry.logprob, 4) in logged


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", list(CALLS))
def test_a_tool_of_each_kind_and_its_result(
    real: Served, agent: tuple[str, Any], stream: bool, kind: str
) -> None:
    rollout, client = agent
    tools = {"weather": [WEATHER], "patch": [PATCH], "crm": [SPACE]}[kind]
    forced = {"extra_body": {"structured_outputs": {"regex": CALLS[kind]}}, "max_output_tokens": 200}
    first = ask(client, stream=stream, tools=tools, **forced)
    call = next(item for item in first.output if item.type.endswith("_call"))
    if kind == "patch":
        assert (call.type, call.name) == ("custom_tool_call", "patch") and call.input in ('a\n"b"', 'a\n"c"')
    else:
        assert (call.type, call.name) == ("function_call", "weather") and "city" in call.arguments
        assert call.namespace == ("crm" if kind == "crm" else None)
    output = {"type": f"{call.type}_output", "call_id": call.call_id, "output": "sunny"}
    echoed = [{"role": "user", "content": "hi"}, *(item.to_dict() for item in first.output), output]
    ask(client, stream=stream, tools=tools, input=echoed)
    ask(client, stream=stream, tools=tools, input=[output], previous_response_id=first.id)
    sampled, stateless, stateful = real.spans(rollout)
    assert sampled.untrainable_reason == "structured_outputs"
    assert stateless.prompt_tokens is not None and stateful.prompt_tokens is not None
    assert stateless.prompt_tokens.tolist() == stateful.prompt_tokens.tolist()
    assert sampled.prompt_tokens is not None
    assert len(stateless.prompt_tokens) > len(sampled.prompt_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_errors_of_the_engine(real: Served, agent: tuple[str, Any], stream: bool) -> None:
    _, client = agent
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, stream=stream, input="word " * 2 * WINDOW)
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError) as caught:
        ask(client, stream=stream, max_output_tokens=-1)
    assert caught.value.type == "invalid_request_error"
