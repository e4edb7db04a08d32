"""The Messages route as its official client sees it, over a real vLLM with a tiny random model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import anthropic
import pytest

from spanlog.records import SpanRecord
from tests.conftest import StartEngine
from tests.engine_fixture import WINDOW, EngineProcess
from tests.proxy.conftest import Served, serve

pytestmark = pytest.mark.engine

WEATHER: dict[str, Any] = {
    "name": "weather",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
CALLS = (
    r'Well\.\n<tool_call>\n\{"name": "weather", "arguments": \{"city": "(Rome|Oslo)"\}\}\n</tool_call>'
    r'\n<tool_call>\n\{"name": "weather", "arguments": \{\}\}\n</tool_call>'
)
"""A grammar that makes a random model say something and call the tool twice: the calls are real."""
ASK: dict[str, Any] = {
    "model": "claude",
    "max_tokens": 24,
    "system": [{"type": "text", "text": "be kind", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "weather?"}],
}


@pytest.fixture(scope="module")
def proxy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(f"sqlite:///{tmp_path_factory.mktemp('messages') / 'spans.db'}") as served:
        yield served


@pytest.fixture
def real(proxy: Served, base_weights: EngineProcess) -> Served:
    proxy.ok("PUT", "/api/policies/pol", {"kind": "train", "model": base_weights.served_name})
    proxy.ok("PUT", "/api/engines/real", {"policy": "pol", "base_url": base_weights.base_url})
    return proxy


def client(served: Served, key: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url, api_key=key, max_retries=0)


def ask(agent: anthropic.Anthropic, stream: bool, **fields: Any) -> Any:
    if not stream:
        return agent.messages.create(**{**ASK, **fields})
    with agent.messages.stream(**{**ASK, **fields}) as events:
        return events.get_final_message()


def check(span: SpanRecord, message: Any) -> None:
    """The span is whole, and the message says what it holds."""
    assert (span.dialect, span.status) == ("messages", "ok")
    assert span.prompt_tokens is not None and span.completion_tokens is not None and span.logprobs is not None
    assert len(span.completion_tokens) == len(span.logprobs) > 0
    assert message.usage.input_tokens == len(span.prompt_tokens)
    assert message.usage.output_tokens == len(span.completion_tokens)


@pytest.mark.parametrize("stream", [False, True])
def test_text_and_its_limits(real: Served, stream: bool) -> None:
    rollout, key = real.rollout()
    with client(real, key) as agent:
        message = ask(agent, stream)
        stopped = ask(agent, stream, stop_sequences=["e"], max_tokens=1500)
    first, second = real.spans(rollout)
    for span, found in ((first, message), (second, stopped)):
        check(span, found)
        assert span.trainable and span.reply is not None
        assert "".join(block.text for block in found.content) == span.reply["message"]["content"]
    assert message.stop_reason in ("max_tokens", "end_turn")
    if second.stop_reason == "e":
        assert (stopped.stop_reason, stopped.stop_sequence) == ("stop_sequence", "e")


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_with_tools(real: Served, stream: bool) -> None:
    """The calls' ids come back with their results, in another order, and the engine takes the conversation."""
    rollout, key = real.rollout()
    options = {"tools": [WEATHER], "max_tokens": 300}
    with client(real, key) as agent:
        forced = ask(agent, stream, **options, extra_body={"structured_outputs": {"regex": CALLS}})
        text, first, second = forced.content
        assert (forced.stop_reason, text.text.strip()) == ("tool_use", "Well.")
        assert first.input["city"] in ("Rome", "Oslo") and second.input == {}
        results = [
            {
                "type": "tool_result",
                "tool_use_id": call.id,
                "content": [{"type": "text", "text": f"sun {number}"}],
            }
            for number, call in enumerate((first, second))
        ]
        messages = [
            *ASK["messages"],
            {"role": "assistant", "content": forced.content},
            {"role": "user", "content": [*reversed(results), {"type": "text", "text": "and?"}]},
            {"role": "system", "content": "be brief"},
        ]
        answer = ask(agent, stream, **{**options, "max_tokens": 8, "messages": messages})
        count = agent.messages.count_tokens(
            model="m", system=ASK["system"], tools=[WEATHER], messages=messages
        ).input_tokens
    before, after = real.spans(rollout)
    check(before, forced)
    check(after, answer)
    assert before.untrainable_reason == "structured_outputs" and after.trainable
    assert after.prompt_tokens is not None and count == len(after.prompt_tokens)


def test_prompts_are_counted_exactly(real: Served) -> None:
    rollout, key = real.rollout()
    with client(real, key) as agent:
        fields = {name: ASK[name] for name in ("model", "system", "messages")}
        count = agent.messages.count_tokens(**fields).input_tokens
        message = ask(agent, False)
    (span,) = real.spans(rollout)
    assert span.prompt_tokens is not None
    assert count == len(span.prompt_tokens) == message.usage.input_tokens


@pytest.mark.parametrize("words", [3000, 60_000])
def test_an_overlong_prompt_is_told_as_anthropic_tells_it(real: Served, words: int) -> None:
    _, key = real.rollout()
    long = [{"role": "user", "content": "long " * words}]
    with client(real, key) as agent:
        for stream in (False, True):
            with pytest.raises(anthropic.BadRequestError) as found:
                agent.messages.create(**{**ASK, "messages": long}, stream=stream)
            assert "prompt is too long: " in str(found.value) and f"tokens > {WINDOW} maximum" in str(
                found.value
            )
        with pytest.raises(anthropic.BadRequestError, match="prompt is too long"):
            agent.messages.count_tokens(model="m", messages=long)


def test_more_tokens_than_the_window_has(real: Served) -> None:
    rollout, key = real.rollout()
    with client(real, key) as agent:
        ask(agent, True, max_tokens=65536, stop_sequences=["e"])
    assert real.span(rollout).stripped == ["max_tokens"]


def test_the_start_of_a_reply_is_gone_on_with(real: Served) -> None:
    rollout, key = real.rollout()
    start = [*ASK["messages"], {"role": "assistant", "content": "The weather is"}]
    with client(real, key) as agent:
        ask(agent, False)
        ask(agent, False, messages=start)
    plain, begun = real.spans(rollout)
    assert plain.prompt_tokens is not None and begun.prompt_tokens is not None
    assert begun.prompt_tokens[: len(plain.prompt_tokens)].tolist() == plain.prompt_tokens.tolist()
    assert len(begun.prompt_tokens) > len(plain.prompt_tokens)


@pytest.mark.slow
def test_thinking(
    proxy: Served,
    start_engine: StartEngine,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A random model never stops thinking: all that it says is thought."""
    from tests import tiny_model

    monkeypatch.setattr(tiny_model, "MARKUP_TOKENS", [*tiny_model.MARKUP_TOKENS, "<think>", "</think>"])
    model = tiny_model.build_tiny_model(tmp_path_factory.mktemp("model") / "thinking", seed=1)
    engine = start_engine(model, extra=("--reasoning-parser", "qwen3")).wait()
    proxy.ok("PUT", "/api/policies/think", {"kind": "train", "model": engine.served_name})
    proxy.ok("PUT", "/api/engines/think", {"policy": "think", "base_url": engine.base_url})
    rollout, key = proxy.rollout("think")
    with client(proxy, key) as agent:
        for stream in (False, True):
            shown = ask(agent, stream, thinking={"type": "adaptive"}, output_config={"effort": "low"})
            span = proxy.spans(rollout)[-1]
            check(span, shown)
            assert span.trainable and span.reply is not None
            (block,) = shown.content
            assert (block.type, block.signature) == ("thinking", span.id)
            assert block.thinking == span.reply["message"]["reasoning"]
            echo = [*ASK["messages"], {"role": "assistant", "content": shown.content}, *ASK["messages"]]
            assert ask(agent, stream, messages=echo).content == [], "not asked for, not shown"
