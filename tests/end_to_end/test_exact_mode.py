"""I1 on a real vLLM: whatever a harness makes of the history, each prompt is the last turn's tokens and what is new.

The model is random: it samples tokens that no text tokenises to, says half a UTF-8 character and stops anywhere, which
is more drift than a trained model shows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from transformers import AutoTokenizer

from spanlog.records import SpanRecord
from tests.engine_fixture import EngineProcess
from tests.proxy.conftest import Served, serve

pytestmark = pytest.mark.engine

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = r'<tool_call>\n\{"name": "weather", "arguments": \{"city":("Rome"|"Oslo")\}\}\n</tool_call>'
"""No space after the colon: a template that renders the arguments anew puts one there."""


@pytest.fixture(scope="module")
def proxy(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(f"sqlite:///{tmp_path_factory.mktemp('exact') / 'spans.db'}") as served:
        yield served


@pytest.fixture
def real(proxy: Served, base_weights: EngineProcess) -> Served:
    for policy, mode in (("exact", "exact"), ("observe", "observe")):
        body = {"kind": "train", "model": base_weights.served_name, "mode": mode, "sampling": {"top_k": 1}}
        proxy.ok("PUT", f"/api/policies/{policy}", body)
    serve_policy(proxy, base_weights, "exact")
    return proxy


def serve_policy(proxy: Served, engine: EngineProcess, policy: str) -> None:
    proxy.ok("PUT", "/api/engines/real", {"policy": policy, "base_url": engine.base_url})


def sampled(span: SpanRecord) -> list[int]:
    assert span.prompt_tokens is not None and span.completion_tokens is not None
    return [*span.prompt_tokens.tolist(), *span.completion_tokens.tolist()]


def ask(proxy: Served, key: str, messages: list[dict[str, Any]], **fields: Any) -> dict[str, Any]:
    response = proxy.chat(key, messages=messages, max_tokens=fields.pop("max_tokens", 16), **fields)
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]


def respaced(message: dict[str, Any]) -> dict[str, Any]:
    """As harnesses send it back: other spacing, no ids of vLLM's, text as a list of parts."""
    calls = [
        {
            **call,
            "function": {
                **call["function"],
                "arguments": json.dumps(json.loads(call["function"]["arguments"])),
            },
        }
        for call in message.get("tool_calls") or ()
    ]
    content = [{"type": "text", "text": message["content"]}] if message.get("content") else None
    return {"role": "assistant", "content": content, **({"tool_calls": calls} if calls else {})}


def test_every_prompt_extends_the_last_turn(real: Served) -> None:
    """Text turns that length or a stop string cuts, and tool calls that come back re-spaced."""
    rollout, key = real.rollout("exact")
    messages: list[dict[str, Any]] = [{"role": "user", "content": "What is the weather?"}]
    kinds: list[dict[str, Any]] = [
        {},
        {"structured_outputs": {"regex": CALL}, "max_tokens": 60},
        {"stop": ["e", "a"]},
        {"structured_outputs": {"regex": "Fine( and dry)?[.]"}},
        {},
    ]
    for turn, fields in enumerate(kinds):
        reply = respaced(ask(real, key, messages, tools=[TOOL], **fields))
        messages.append(reply)
        for call in reply.get("tool_calls", ()):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": f"{turn} degrees"})
        messages.append({"role": "user", "content": f"And on day {turn}?"})
    spans = real.spans(rollout)
    assert len(spans) == len(kinds)
    assert any(span.finish_reason == "tool_calls" for span in spans), "the grammar made one"
    assert any(span.finish_reason == "length" for span in spans)
    for before, after in pairwise(spans):
        assert (after.parent_id, after.fork_cause) == (before.id, None)
        assert sampled(after)[: len(sampled(before))] == sampled(before)
    ends = real.ok("GET", "/api/engines/real")["capabilities"]["turn_closer"]
    for before, after in pairwise(spans):
        new = sampled(after)[
            len(sampled(before)) : len(after.prompt_tokens if after.prompt_tokens is not None else [])
        ]
        closed = sampled(before)[-1] == ends[0]
        assert new[0] == (ends[1] if closed else ends[0]), (
            "a cut turn is closed, a closed one is not closed again"
        )


def test_the_new_part_is_what_the_template_says(real: Served, base_weights: EngineProcess) -> None:
    rollout, key = real.rollout("exact")
    first: list[dict[str, Any]] = [{"role": "user", "content": "x"}]
    reply = ask(real, key, first)
    ask(real, key, [*first, reply, {"role": "user", "content": "Go on"}])
    before, after = real.spans(rollout)
    tokenizer = AutoTokenizer.from_pretrained(base_weights.model)
    assert after.prompt_tokens is not None
    new = tokenizer.decode(after.prompt_tokens[len(sampled(before)) :])
    ended = before.finish_reason == "stop"
    assert (
        new
        == ("" if ended else "<|im_end|>") + "\n<|im_start|>user\nGo on<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize("stream", [False, True])
def test_where_nothing_is_spliced_the_answer_is_that_of_observe_mode(
    real: Served, base_weights: EngineProcess, stream: bool
) -> None:
    """Top-k 1, so that the model says the same twice; ids and time alone differ."""
    answers = []
    for policy in ("exact", "observe"):
        serve_policy(real, base_weights, policy)
        _, key = real.rollout(policy)
        body = {"messages": [{"role": "user", "content": "Same?"}], "max_tokens": 12, "stream": stream}
        text = real.chat(
            key, tools=[TOOL], stream_options={"include_usage": True} if stream else None, **body
        ).text
        events = [line.removeprefix("data: ") for line in text.split("\n\n")] if stream else [text]
        answers.append(assembled([plain(event) for event in events]))
    assert answers[0] == answers[1]
    assert len(answers[0]) > 2 or not stream


def assembled(events: list[Any]) -> list[Any]:
    """The same, however the engine's steps fell into chunks: neighbours that only add text are one."""
    joined: list[Any] = []
    for event in events:
        choices = event.get("choices") if isinstance(event, dict) else None
        last = joined[-1] if joined else None
        if choices and isinstance(last, dict) and only_text(event) and only_text(last):
            last["choices"][0]["delta"]["content"] += choices[0]["delta"]["content"]
        else:
            joined.append(event)
    return joined


def only_text(event: dict[str, Any]) -> bool:
    choices = event.get("choices") or [{}]
    return list(choices[0].get("delta") or ()) == ["content"] and choices[0].get("finish_reason") is None


def plain(event: str) -> Any:
    if not event.startswith("{"):
        return event
    document = json.loads(event)
    assert document.pop("id") and document.pop("created")
    (document.get("usage") or {}).pop("prompt_tokens_details", None)  # what the engine had in its cache
    return document
