"""Replies in the shape of the Messages API: what is streamed, put together by the official client's own accumulator,
equals the whole reply, however the engine cut it into chunks."""

from __future__ import annotations

import copy
import json
from typing import Any

import orjson
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from proxy.dialects import messages
from proxy.dialects.base import Failure, Target
from proxy.hub import MessageBuilder
from proxy.sse import SseParser

PROMPT = 7
EVENTS: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def call(**fields: Any) -> messages.MessagesCall:
    body = {"model": "m", "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}], **fields}
    return messages.decode(orjson.dumps(body), Target(span_id="spn_0abc", created_at=0.0))


THINKING = {"thinking": {"type": "adaptive"}}


def chat_reply(message: dict[str, Any], finish: str = "stop", stop: Any = None) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish, "stop_reason": stop}
    usage = {"prompt_tokens": PROMPT, "completion_tokens": 5, "total_tokens": PROMPT + 5}
    return {"id": "chatcmpl-1", "choices": [choice], "usage": usage}


def whole(message: dict[str, Any], finish: str = "stop", stop: Any = None, **fields: Any) -> dict[str, Any]:
    document = orjson.loads(call(**fields).whole(chat_reply(copy.deepcopy(message), finish, stop)))
    Message.model_validate(document)
    return document


def chat_chunks(
    deltas: list[dict[str, Any]], finish: str = "stop", stop: Any = None, usage: bool = True
) -> list[dict[str, Any]]:
    """As vLLM sends them: the first with the prompt's tokens, the last with the counts."""
    first = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}
    chunks: list[dict[str, Any]] = [{"choices": [first], "prompt_token_ids": [1] * PROMPT}]
    for delta in deltas:
        chunks.append({"choices": [{"index": 0, "delta": delta, "finish_reason": None, "token_ids": [3]}]})
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": finish, "stop_reason": stop}]})
    if usage:
        chunks.append({"choices": [], "usage": {"prompt_tokens": PROMPT, "completion_tokens": 5}})
    return chunks


def events(one: messages.MessagesCall, chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    raw = b"".join(one.chunk(copy.deepcopy(chunk)) for chunk in chunks) + one.end()
    found = [orjson.loads(payload) for payload in SseParser().feed(raw)]
    names = [line[7:].decode() for line in raw.splitlines() if line.startswith(b"event: ")]
    assert names == [document["type"] for document in found], "each event is named by its type"
    return found


def assemble(documents: list[dict[str, Any]]) -> dict[str, Any]:
    """The message, as the official client builds it up."""
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for document in documents:
        event = EVENTS.validate_python(document)
        snapshot = accumulate_event(event=event, current_snapshot=snapshot, json_bufs=buffers)
    return plain(snapshot.to_dict())


def plain(document: dict[str, Any]) -> dict[str, Any]:
    """Without the empty fields that the client adds."""
    found = {name: value for name, value in document.items() if value is not None}
    found["content"] = [{k: v for k, v in block.items() if v is not None} for block in document["content"]]
    found["usage"] = {name: value for name, value in document["usage"].items() if value is not None}
    return found


def tool_call(arguments: str, call_id: str = "call_1", name: str = "look") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


# Whole replies


def test_a_plain_reply() -> None:
    assert whole({"role": "assistant", "content": "Hello"}) == {
        "id": "msg_0abc",
        "type": "message",
        "role": "assistant",
        "model": "m",
        "content": [{"type": "text", "text": "Hello"}],
        "stop_reason": "end_turn",
        "stop_sequence": None,
        "usage": {
            "input_tokens": PROMPT,
            "output_tokens": 5,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": 0,
        },
    }


@pytest.mark.parametrize("field", ["reasoning", "reasoning_content"])
def test_thoughts_are_shown_to_those_who_asked(field: str) -> None:
    message = {"role": "assistant", "content": "Hello", field: "hm"}
    thought = {"type": "thinking", "thinking": "hm", "signature": "spn_0abc"}
    assert whole(message, **THINKING)["content"] == [thought, {"type": "text", "text": "Hello"}]
    assert whole(message)["content"] == [{"type": "text", "text": "Hello"}]
    assert whole(message, thinking={"type": "disabled"})["content"] == [{"type": "text", "text": "Hello"}]


def test_calls_are_blocks_and_their_arguments_stay_as_sampled() -> None:
    arguments = '{"b": 1.0, "a": 123456789012345678901234567890}'
    message = {"role": "assistant", "content": None, "tool_calls": [tool_call(arguments), tool_call("")]}
    raw = call().whole(chat_reply(message, "tool_calls"))
    assert arguments.encode() in raw
    found = orjson.loads(raw)
    assert [block["id"] for block in found["content"]] == ["call_1", "call_1"]
    assert found["content"][1]["input"] == {}
    assert found["stop_reason"] == "tool_use"


@pytest.mark.parametrize("arguments", ['{"a": 1', "[1]", "null", "NaN", '{"a": "\\ud800"}'])
def test_arguments_that_are_no_object_are_kept_as_text(arguments: str) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [tool_call(arguments)]}
    (block,) = whole(message, "tool_calls")["content"]
    assert block["input"] == {"unparsed_arguments": arguments}


def test_a_call_without_an_id_gets_one() -> None:
    message = {"role": "assistant", "content": "", "tool_calls": [{**tool_call("{}"), "id": None}]}
    (block,) = whole(message, "tool_calls")["content"]
    assert block["id"] == "toolu_0abc_0"


@pytest.mark.parametrize(
    ("finish", "stop", "arguments", "expected"),
    [
        ("stop", None, None, ("end_turn", None)),
        ("stop", 151645, None, ("end_turn", None)),
        ("stop", "</s>", None, ("end_turn", None)),
        ("stop", "X", None, ("stop_sequence", "X")),
        ("length", None, None, ("max_tokens", None)),
        ("length", None, '{"a', ("max_tokens", None)),
        ("content_filter", None, None, ("refusal", None)),
        ("tool_calls", None, "{}", ("tool_use", None)),
        ("stop", None, "{}", ("tool_use", None)),
        ("tool_calls", "X", "{}", ("tool_use", None)),
        ("tool_calls", "X", '{"a', ("stop_sequence", "X")),
    ],
)
def test_stop_reasons(
    finish: str, stop: Any, arguments: str | None, expected: tuple[str, str | None]
) -> None:
    message: dict[str, Any] = {"role": "assistant", "content": "x"}
    deltas: list[dict[str, Any]] = [{"content": "x"}]
    if arguments is not None:
        message["tool_calls"] = [tool_call(arguments)]
        deltas.append({"tool_calls": [{"index": 0, **tool_call(arguments)}]})
    found = whole(message, finish, stop, stop_sequences=["X"])
    assert (found["stop_reason"], found["stop_sequence"]) == expected
    streamed = events(call(stop_sequences=["X"]), chat_chunks(deltas, finish, stop))[-2]
    assert streamed["delta"] == {"stop_reason": expected[0], "stop_sequence": expected[1]}


# Streams


def test_the_events_of_a_reply_with_a_call() -> None:
    parts = [{"tool_calls": [{"index": 0, "function": {"arguments": part}}]} for part in ('{"a"', ": 1}")]
    begin = {"tool_calls": [{"index": 0, **tool_call("")}]}
    found = events(
        call(), chat_chunks([{"content": "I "}, {"content": "look."}, begin, *parts], "tool_calls")
    )
    assert [(event["type"], event.get("index"), *event.get("delta", {}).values()) for event in found] == [
        ("message_start", None),
        ("content_block_start", 0),
        ("content_block_delta", 0, "text_delta", "I "),
        ("content_block_delta", 0, "text_delta", "look."),
        ("content_block_stop", 0),
        ("content_block_start", 1),
        ("content_block_delta", 1, "input_json_delta", '{"a"'),
        ("content_block_delta", 1, "input_json_delta", ": 1}"),
        ("content_block_stop", 1),
        ("message_delta", None, "tool_use", None),
        ("message_stop", None),
    ]
    assert found[0]["message"]["usage"]["input_tokens"] == PROMPT
    assert found[-2]["usage"]["output_tokens"] == 5


def test_without_counts_from_the_engine_tokens_are_counted() -> None:
    found = events(call(), chat_chunks([{"content": "a"}, {"content": "b"}], usage=False))
    assert found[-2]["usage"]["input_tokens"] == PROMPT
    assert found[-2]["usage"]["output_tokens"] == 2


def test_another_attempt_starts_the_stream_anew() -> None:
    one = call()
    assert b"message_start" in one.chunk(chat_chunks([])[0])
    one.restart()
    assert events(one, chat_chunks([{"content": "a"}]))[0]["type"] == "message_start"


def test_a_call_that_goes_on_after_its_end_is_no_stream() -> None:
    one = call()
    for index in (0, 1):
        one.chunk({"choices": [{"delta": {"tool_calls": [{"index": index, **tool_call("")}]}}]})
    with pytest.raises(TypeError):
        one.chunk({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}]})


_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
_json = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=6,
)
_arguments = st.builds(
    lambda value, indent, ascii_: json.dumps(value, indent=indent, ensure_ascii=ascii_),
    st.dictionaries(_texts, _json, max_size=3),
    st.none() | st.just(2),
    st.booleans(),
)


def _cut(data: st.DataObject, text: str) -> list[str]:
    places = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@settings(deadline=None)
@given(
    _texts,
    _texts,
    st.lists(_arguments, max_size=3),
    st.sampled_from(["stop", "length"]),
    st.booleans(),
    st.data(),
)
def test_a_stream_adds_up_to_the_whole_reply(
    thoughts: str, text: str, arguments: list[str], finish: str, thinking: bool, data: st.DataObject
) -> None:
    deltas: list[dict[str, Any]] = [{"reasoning": piece} for piece in _cut(data, thoughts)]
    deltas += [{"content": piece} for piece in _cut(data, text)]
    for index, argument in enumerate(arguments):
        named = {"index": index, **tool_call("", f"call_{index}")}
        deltas.append({"tool_calls": [named]})
        for piece in _cut(data, argument):
            deltas.append({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    for _ in range(data.draw(st.integers(0, 2))):  # tokens that a parser withheld
        deltas.insert(data.draw(st.integers(0, len(deltas))), {})
    finish = "tool_calls" if arguments and finish == "stop" else finish
    fields = THINKING if thinking else {}
    builder = MessageBuilder()
    for delta in copy.deepcopy(deltas):
        builder.add(delta)
    documents = events(call(**fields), chat_chunks(deltas, finish))
    assert assemble(documents) == plain(whole(builder.build(), finish, **fields))
    fragments = [d["delta"]["partial_json"] for d in documents if d.get("delta", {}).get("partial_json")]
    assert fragments == [
        fragment
        for delta in deltas
        for one in delta.get("tool_calls", ())
        if (fragment := one["function"]["arguments"])
    ], "fragments of arguments are the engine's own"


@settings(deadline=None)
@given(_texts, _texts, st.lists(_arguments | _texts | st.sampled_from(["[1]", '{"a"', "null"]), max_size=3))
def test_an_echo_says_what_the_reply_said(thoughts: str, text: str, arguments: list[str]) -> None:
    """So that its turn is found again, also where the arguments are no JSON object."""
    calls = [tool_call(argument, f"call_{index}") for index, argument in enumerate(arguments)]
    message = {"role": "assistant", "content": text, "reasoning": thoughts, "tool_calls": calls}
    echo = {"role": "assistant", "content": whole(message, **THINKING)["content"]}
    results = [{"type": "tool_result", "tool_use_id": call["id"], "content": "x"} for call in calls]
    answer = {"role": "user", "content": [*results, {"type": "text", "text": "next"}]}
    found = call(messages=[{"role": "user", "content": "hi"}, echo, answer]).hub["messages"][1]
    assert (found["content"] or "", found.get("reasoning_content", "")) == (text, thoughts)
    said = [(one["id"], one["function"]["name"], meant(one["function"]["arguments"])) for one in calls]
    assert said == [
        (one["id"], one["function"]["name"], meant(one["function"]["arguments"]))
        for one in found.get("tool_calls", [])
    ]


def meant(arguments: str) -> Any:
    """The object that arguments stand for; their text where they are none."""
    if not arguments.strip():
        return {}
    try:
        value = orjson.loads(arguments)
    except orjson.JSONDecodeError:
        return arguments
    return value if isinstance(value, dict) else arguments


# Errors


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, "invalid_request_error"),
        (401, "authentication_error"),
        (403, "permission_error"),
        (404, "not_found_error"),
        (405, "invalid_request_error"),
        (409, "invalid_request_error"),
        (413, "request_too_large"),
        (429, "rate_limit_error"),
        (500, "api_error"),
        (502, "api_error"),
        (503, "overloaded_error"),
        (529, "overloaded_error"),
    ],
)
def test_errors(status: int, kind: str) -> None:
    failure = Failure(status, "why", engine_error={"error": {"message": "why", "type": "x"}})
    expected = {"type": "error", "error": {"type": kind, "message": "why"}}
    assert messages.error(failure) == expected
    event = call().error_event(failure)
    assert event == b"event: error\ndata: " + orjson.dumps(expected) + b"\n\n"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        (
            "This model's maximum context length is 512 tokens. However, your prompt contains 600 input tokens, which "
            "exceeds this limit even without any output tokens.",
            "prompt is too long: 600 tokens > 512 maximum",
        ),
        (
            "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 input "
            "tokens, which exceeds this limit",
            "prompt is too long: at least 513 tokens > 512 maximum",
        ),
        (
            "This model's maximum context length is 512 tokens. However, your prompt contains 90000 characters (more "
            "than 8192 characters, which is the upper bound for 512 input tokens).",
            "prompt is too long: at least 513 tokens > 512 maximum",
        ),
        (
            "Input length (1480) exceeds model's maximum context length (512).",
            "prompt is too long: 1480 tokens > 512 maximum",
        ),
        (
            "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
            "prompt is too long: 9000 tokens > 8192 maximum",
        ),
    ],
)
def test_an_overlong_prompt_is_told_in_the_words_that_harnesses_look_for(message: str, expected: str) -> None:
    assert messages.error(Failure(400, message))["error"]["message"] == expected
    assert messages.error(Failure(500, message))["error"]["message"] == message
