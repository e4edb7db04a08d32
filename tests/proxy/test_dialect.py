"""What the caller did not ask for is taken out again; what it asked for stays."""

from __future__ import annotations

from typing import Any

import pytest

from proxy import hub
from proxy.dialects import chat
from proxy.dialects.base import Target

LOGPROBS = {"content": [{"token": "a", "logprob": -0.5, "bytes": None, "top_logprobs": []}]}


def asked(**fields: Any) -> chat.Asked:
    return chat.read_asked({"model": "agent-model", **fields})


def reply() -> dict[str, Any]:
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": "a"},
        "logprobs": LOGPROBS,
        "finish_reason": "stop",
        "stop_reason": None,
        "token_ids": [5],
        "routed_experts": None,
    }
    return {
        "id": "x",
        "model": "engine-model",
        "choices": [choice],
        "usage": {"completion_tokens": 1},
        "prompt_token_ids": [1],
        "prompt_logprobs": None,
        "kv_transfer_params": None,
    }


def test_a_whole_reply_is_plain() -> None:
    document = reply()
    chat.clean_reply(document, asked())
    assert document == {
        "id": "x",
        "model": "agent-model",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "a"},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {"completion_tokens": 1},
    }


def test_what_was_asked_for_stays() -> None:
    document = reply()
    chat.clean_reply(document, asked(logprobs=True, return_token_ids=True, prompt_logprobs=0))
    assert document["choices"][0]["logprobs"] == LOGPROBS
    assert document["choices"][0]["token_ids"] == [5]
    assert document["prompt_token_ids"] == [1]
    assert "prompt_logprobs" in document


def chunk(delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    choice = {
        "index": 0,
        "delta": delta,
        "logprobs": LOGPROBS,
        "finish_reason": None,
        "token_ids": [5],
        **choice,
    }
    return {"model": "engine-model", "choices": [choice]}


def call_delta(arguments: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f", "arguments": arguments}}]}


@pytest.mark.parametrize(
    ("delta", "choice", "fields", "kept"),
    [
        ({"content": "a"}, {}, {}, True),
        ({"role": "assistant", "content": ""}, {}, {}, True),
        ({}, {}, {}, False),
        ({"content": ""}, {}, {}, False),
        ({"reasoning": None}, {}, {}, False),
        ({}, {"finish_reason": "stop"}, {}, True),
        ({}, {}, {"logprobs": True}, True),
        ({}, {}, {"return_token_ids": True}, True),
        ({"tool_calls": [{"index": 0}]}, {}, {}, True),
    ],
)
def test_chunks_that_carry_nothing_but_tokens_are_dropped(
    delta: dict[str, Any], choice: dict[str, Any], fields: dict[str, Any], kept: bool
) -> None:
    assert chat.clean_chunk(chunk(delta, **choice), asked(stream=True, **fields)) is kept


def test_a_call_begins_with_empty_arguments() -> None:
    """As OpenAI's streams have it; vLLM leaves them out, and qwen-agent fails on that."""
    for function in ({"name": "f"}, {"name": "f", "arguments": None}, {"name": "f", "arguments": ""}):
        call = {"id": "c", "type": "function", "index": 0, "function": function}
        chunk = {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]}
        assert chat.clean_chunk(chunk, asked())
        assert call["function"] == {"name": "f", "arguments": ""}
    more = {"index": 0, "function": {"arguments": "{"}}
    assert chat.clean_chunk({"choices": [{"index": 0, "delta": {"tool_calls": [more]}}]}, asked())
    assert more == {"index": 0, "function": {"arguments": "{"}}


def test_the_usage_chunk_is_for_those_who_asked() -> None:
    def usage() -> dict[str, Any]:
        return {"model": "m", "choices": [], "usage": {"completion_tokens": 1}}

    assert not chat.clean_chunk(usage(), asked(stream=True))
    document = usage()
    assert chat.clean_chunk(document, asked(stream=True, stream_options={"include_usage": True}))
    assert document["usage"] == {"completion_tokens": 1}


def test_capture_fields_keep_the_callers_stream_options() -> None:
    body: dict[str, Any] = {
        "messages": [],
        "stream": True,
        "stream_options": {"continuous_usage_stats": True},
    }
    options = body["stream_options"]
    hub.add_capture(body)
    assert body["stream_options"] == {"continuous_usage_stats": True, "include_usage": True}
    assert options == {"continuous_usage_stats": True}
    assert body["logprobs"] is body["return_token_ids"] is True


def test_deltas_become_the_message() -> None:
    builder = hub.MessageBuilder()
    for delta in (
        {"role": "assistant", "content": ""},
        {"reasoning": "so "},
        {"reasoning": "then"},
        {"content": "hel"},
        {"content": "lo", "tool_calls": None},
        {
            "tool_calls": [
                {"index": 1, "id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "id": "a", "type": "function", "function": {"name": "f"}}]},
        {
            "tool_calls": [
                {"index": 0, "function": {"arguments": '{"x":'}},
                {"index": 0, "function": {"arguments": "1}"}},
            ]
        },
    ):
        builder.add(delta)
    assert builder.build() == {
        "role": "assistant",
        "content": "hello",
        "reasoning": "so then",
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"x":1}'}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}},
        ],
    }


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
        (b"{}", "messages"),
        (b'{"messages": []}', "messages"),
        (b'{"messages": "hi"}', "messages"),
        (b'{"messages": ["hi"]}', "messages"),
        (b'{"messages": [{}], "stream": "yes"}', "stream"),
        (b'{"messages": [{}], "n": true}', "n"),
        (b'{"messages": [{}], "tools": {}}', "tools"),
        (b'{"messages": [{}], "stream_options": 1}', "stream_options"),
        (b'{"messages": [{}], "model": 1}', "model"),
    ],
)
def test_bad_requests_name_the_field(raw: bytes, param: str | None) -> None:
    with pytest.raises(chat.BadRequest) as caught:
        chat.decode(raw, Target("spn_1", 0.0))
    assert caught.value.param == param


def test_nan_from_an_engine_is_read() -> None:
    assert str(hub.loads(b'{"logprob": NaN}')["logprob"]) == "nan"


@pytest.mark.parametrize(
    ("deltas", "completes"),
    [
        ([call_delta('{"a": 1')], False),
        ([call_delta('{"a": 1}')], True),
        ([call_delta('{"a": 1}\n')], True),
        ([call_delta('{"a": 1'), {"content": "then"}], True),
        ([call_delta(""), {"reasoning": "hm"}], True),
        ([{"content": "a}"}], False),
    ],
)
def test_from_where_a_caller_may_act_on_a_call(deltas: list[dict[str, Any]], completes: bool) -> None:
    builder = hub.MessageBuilder()
    assert [builder.add(delta) for delta in deltas][-1] is completes


def test_reasoning_that_is_not_wanted_is_captured_and_not_sent() -> None:
    """vLLM leaves the ids of all tokens out where reasoning is switched off."""
    body: dict[str, Any] = {"messages": [], "include_reasoning": False}
    hub.add_capture(body)
    assert body["include_reasoning"] is True
    document = chunk({"reasoning": "hm", "content": "a"})
    assert chat.clean_chunk(document, asked(include_reasoning=False))
    assert document["choices"][0]["delta"] == {"content": "a"}
    assert not chat.clean_chunk(chunk({"reasoning": "hm"}), asked(include_reasoning=False))
