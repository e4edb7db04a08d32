"""A streamed reply is the whole reply, and a reply that is echoed is the message that was sampled."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects.base import Failure
from proxy.dialects.responses import error
from proxy.dialects.responses.reasoning import SEAL
from tests.proxy.dialects.responses_replies import (
    CUSTOM,
    KEY,
    USAGE,
    answer_stream,
    answer_whole,
    chunk,
    chunkings,
    client_events,
    decode,
    messages,
    whole_reply,
)

DELTAS = {
    "response.output_text.delta": ("content", "text"),
    "response.reasoning_text.delta": ("content", "text"),
    "response.function_call_arguments.delta": ("arguments", None),
    "response.custom_tool_call_input.delta": ("input", None),
}
finish_reasons = st.sampled_from(["stop", "tool_calls", "length"])


def spelled(events: list[Any]) -> dict[int, str]:
    """The text of each output item, put together from the deltas alone."""
    found: dict[int, str] = {}
    for event in events:
        if event.type in DELTAS:
            found[event.output_index] = found.get(event.output_index, "") + event.delta
    return {index: text for index, text in found.items() if text}


def texts_of(output: list[dict[str, Any]]) -> dict[int, str]:
    found = {}
    for index, item in enumerate(output):
        parts = item.get("content")
        text = parts[0]["text"] if parts else item.get("arguments", item.get("input", ""))
        found[index] = text
    return {index: text for index, text in found.items() if text}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_stream_is_the_whole_reply(data: st.DataObject) -> None:
    message, finish_reason = data.draw(messages()), data.draw(finish_reasons)
    chunks = data.draw(chunkings(message, finish_reason))
    whole = answer_whole(decode(stream=True), whole_reply(message, finish_reason))
    events = client_events(answer_stream(decode(stream=True), chunks))
    assert [event.type for event in events[:2]] == ["response.created", "response.in_progress"]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].type == ("response.incomplete" if finish_reason == "length" else "response.completed")
    streamed = json.loads(events[-1].response.to_json())
    assert without_parsed(streamed) == whole
    assert spelled(events) == texts_of(whole["output"])
    done = [event.item.to_dict() for event in events if event.type == "response.output_item.done"]
    assert without_parsed(done) == whole["output"]


def without_parsed(value: Any) -> Any:
    """Less what the client itself adds to the reply."""
    if isinstance(value, dict):
        return {name: without_parsed(inner) for name, inner in value.items() if not name.startswith("parsed")}
    return [without_parsed(inner) for inner in value] if isinstance(value, list) else value


def as_stateless_harness(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Codex keeps what is opaque of a reasoning item and drops its readable text."""
    return [item | {"content": None} if item["type"] == "reasoning" else item for item in items]


def without_ids(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def readable(message: dict[str, Any]) -> dict[str, Any]:
    """A hub message with the arguments of custom tools as values: their spacing is the dialect's own."""
    calls = [
        call | {"function": call["function"] | {"arguments": json.loads(call["function"]["arguments"])}}
        if call["function"]["name"] in CUSTOM
        else call
        for call in message.get("tool_calls", [])
    ]
    return message | ({"tool_calls": calls} if calls else {})


@settings(max_examples=100, deadline=None)
@given(messages(tidy=True), st.sampled_from([as_stateless_harness, without_ids, list]))
def test_an_echoed_reply_is_the_message_that_was_sampled(message: dict[str, Any], harness: Any) -> None:
    call = decode()
    items = harness(answer_whole(call, whole_reply(message))["output"])
    user = {"role": "user", "content": "hi"}
    echoed = decode(key="1" * 26, input=[user, *items, user], tools=[]).hub["messages"]
    assert echoed[0] == echoed[2] == user and len(echoed) == 3
    assert readable(echoed[1]) == readable(call.as_history(message))


@settings(max_examples=50, deadline=None)
@given(messages(tidy=True), messages(tidy=True))
def test_two_replies_stay_two(first: dict[str, Any], second: dict[str, Any]) -> None:
    calls = decode(), decode(key="2" * 26)
    items = [
        item
        for call, message in zip(calls, (first, second), strict=True)
        for item in answer_whole(call, whole_reply(message))["output"]
    ]
    echoed = decode(key="3" * 26, input=items, tools=[]).hub["messages"]
    expected = [call.as_history(message) for call, message in zip(calls, (first, second), strict=True)]
    assert list(map(readable, echoed)) == list(map(readable, expected))


def test_calls_and_outputs_in_turns_are_one_reply() -> None:
    """Some harnesses put each output behind its call: ids tell that the calls were sampled together."""
    function = {"name": "read", "arguments": "{}"}
    message = {"content": None, "tool_calls": [{"id": name, "function": function} for name in "ab"]}
    first, second = answer_whole(decode(), whole_reply(message))["output"]
    outputs = [{"type": "function_call_output", "call_id": name, "output": name} for name in "ab"]
    items = [{"role": "user", "content": "hi"}, first, outputs[0], second, outputs[1]]
    echoed = decode(input=items).hub["messages"]
    assert [message["role"] for message in echoed] == ["user", "assistant", "tool", "tool"]
    assert [call["id"] for call in echoed[1]["tool_calls"]] == ["a", "b"]
    without = decode(input=[{k: v for k, v in item.items() if k != "id"} for item in items]).hub["messages"]
    assert [message["role"] for message in without] == ["user", "assistant", "tool", "assistant", "tool"]


def test_text_behind_a_call_comes_last() -> None:
    """A call must not be closed early, or its caller could act before the span is committed."""
    head = {"index": 0, "id": "c", "function": {"name": "read", "arguments": '{"a'}}
    call = decode(stream=True)
    early = b"".join(call.chunk(chunk(delta)) for delta in ({"tool_calls": [head]}, {"content": "late"}))
    assert b"late" not in early and b".done" not in early
    output = client_events(early + call.end())[-1].response.output
    assert [item.type for item in output] == ["function_call", "message"]
    echoed = decode(input=[item.to_dict() for item in output]).hub["messages"]
    assert len(echoed) == 1 and echoed[0]["content"] == "late"


def test_interleaved_calls_are_sent_one_after_another() -> None:
    fragments = [(0, '{"a":'), (1, '{"b":'), (0, "1}"), (1, "2}")]
    deltas = [
        {"tool_calls": [{"index": i, "id": f"c{i}", "function": {"arguments": text}}]}
        for i, text in fragments
    ]
    for delta in deltas[:2]:
        delta["tool_calls"][0]["function"]["name"] = "read"
    events = client_events(answer_stream(decode(stream=True), [chunk(delta) for delta in deltas]))
    order = [event.output_index for event in events if hasattr(event, "output_index")]
    assert order == sorted(order)
    assert [item.arguments for item in events[-1].response.output] == ['{"a":1}', '{"b":2}']


def entry(token: str) -> dict[str, Any]:
    return {"token": token, "logprob": -0.5, "bytes": list(token.encode()), "top_logprobs": []}


def test_logprobs_are_those_of_the_text() -> None:
    options: dict[str, Any] = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": True}
    assert decode(**options).hub["logprobs"] is True and decode(**options).hub["top_logprobs"] == 2
    tokens = ["think", "</think>", "Hel", "lo", "<call>", ""]
    logprobs = {"content": [entry(token) for token in tokens]}
    message = {"content": "Hello", "reasoning": "think"}
    whole = answer_whole(decode(**options), whole_reply(message, logprobs=logprobs))
    part = whole["output"][1]["content"][0]
    assert [logprob["token"] for logprob in part["logprobs"]] == ["Hel", "lo"]
    deltas = [{"reasoning": "think"}, {}, {"content": "Hel"}, {"content": "lo"}, {}, {}]
    chunks = [
        chunk(delta, logprobs={"content": [entry(token)]})
        for delta, token in zip(deltas, tokens, strict=True)
    ]
    streamed = client_events(answer_stream(decode(**options), chunks))
    assert (
        json.loads(streamed[-1].response.to_json())["output"][1]["content"][0]["logprobs"] == part["logprobs"]
    )
    unasked = answer_whole(decode(), whole_reply(message, logprobs=logprobs))
    assert unasked["output"][1]["content"][0]["logprobs"] == []


def test_a_whole_reply_in_full() -> None:
    message = {
        "content": "Hi",
        "reasoning": "hm",
        "tool_calls": [{"id": "c", "function": {"name": "crm__query", "arguments": '{"input": "a\\nb"}'}}],
    }
    call = decode(
        instructions="Be brief", metadata={"a": "b"}, max_output_tokens=9, temperature=0.5, model="mine"
    )
    reply = answer_whole(call, whole_reply(message, "tool_calls"))
    assert (
        reply["id"] == f"resp_{KEY}"
        and reply["object"] == "response"
        and reply["created_at"] == 1_700_000_000
    )
    assert reply["model"] == "mine" and reply["status"] == "completed" and reply["incomplete_details"] is None
    assert reply["instructions"] == "Be brief" and reply["metadata"] == {"a": "b"}
    assert (reply["max_output_tokens"], reply["temperature"], reply["top_p"]) == (9, 0.5, 1.0)
    assert reply["usage"] == {
        "input_tokens": USAGE["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 0},
        "output_tokens": USAGE["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 16,
    }
    thinking, text, patch = reply["output"]
    assert thinking["encrypted_content"].startswith(SEAL) and thinking["content"][0]["text"] == "hm"
    assert text["content"] == [{"type": "output_text", "text": "Hi", "annotations": [], "logprobs": []}]
    assert patch == {
        "id": f"ctc_{KEY}_2",
        "type": "custom_tool_call",
        "status": "completed",
        "call_id": "c",
        "name": "query",
        "namespace": "crm",
        "input": "a\nb",
    }


@pytest.mark.parametrize("begun", [False, True])
def test_a_stream_that_breaks_off(begun: bool) -> None:
    call = decode(stream=True)
    sent = call.chunk(chunk({"content": "He"})) if begun else b""
    failure = Failure(502, "The engine broke off.", "engine_broke_off")
    events = client_events(sent + call.error_event(failure))
    assert events[0].type == "response.created" and events[-1].type == "response.failed"
    response = events[-1].response
    assert response.status == "failed" and response.error is not None
    assert (response.error.code, response.error.message) == ("engine_broke_off", "The engine broke off.")


def test_an_attempt_that_is_repeated_leaves_nothing_behind() -> None:
    call = decode(stream=True)
    call.chunk(chunk({"content": "first"}))
    call.restart()
    events = client_events(answer_stream(call, [chunk({"content": "second"}, finish_reason="stop")]))
    assert events[-1].response.output_text == "second"


@pytest.mark.parametrize(
    "message",
    [
        "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 input tokens",
        "Input length (1480) exceeds model's maximum context length (512).",
    ],
)
def test_an_overlong_prompt_has_its_own_code(message: str) -> None:
    engine = {"error": {"message": message, "type": "BadRequestError", "param": "input_tokens", "code": 400}}
    document = error(Failure(400, message, "upstream_error", engine_error=engine))
    assert document["error"] == {
        "message": message,
        "type": "invalid_request_error",
        "param": "input",
        "code": "context_length_exceeded",
    }
    call = decode(stream=True)
    failed = client_events(call.error_event(Failure(400, message)))[-1].response
    assert failed.error.code == "context_length_exceeded"


def test_too_many_requests() -> None:
    assert error(Failure(429, "wait"))["error"]["code"] == "rate_limit_exceeded"
    assert error(Failure(429, "wait"))["error"]["type"] == "rate_limit_error"
