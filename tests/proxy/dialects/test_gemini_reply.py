"""Gemini replies: a stream says what a whole reply says, and what a client sends back is what was answered."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.capture import Capture
from proxy.dialects import gemini
from proxy.dialects.base import Failure, Target
from proxy.dialects.gemini.reply import GeminiCall
from tests.proxy.fake_engine import deltas

ARGUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(max_size=5),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
        max_leaves=5,
    ),
    max_size=3,
)
TEXT = st.text(max_size=20)
SPACING = st.sampled_from([{}, {"separators": (",", ":")}, {"indent": 1}])


@st.composite
def replies(draw: st.DrawFn) -> dict[str, Any]:
    """A message as the engine's parsers give it, arguments written as a model may write them."""
    message: dict[str, Any] = {"role": "assistant", "content": draw(TEXT)}
    if reasoning := draw(TEXT):
        message["reasoning"] = reasoning
    calls = []
    for place in range(draw(st.integers(0, 3))):
        arguments = json.dumps(draw(ARGUMENTS), ensure_ascii=draw(st.booleans()), **draw(SPACING))
        function = {"name": draw(st.sampled_from(["f", "g"])), "arguments": arguments}
        calls.append({"id": f"chatcmpl-tool-{place}", "type": "function", "function": function})
    if calls:
        message |= {"tool_calls": calls, "content": message["content"] or None}
    return message


def make(stream: bool = False, array: bool = False, **config: Any) -> GeminiCall:
    body = {"contents": [{"parts": [{"text": "hi"}]}], "generationConfig": config}
    target = Target("spn_7", 0.0, model="gem", stream=stream, array=array)
    return gemini.decode(json.dumps(body).encode(), target)


def choice(message: dict[str, Any], finish_reason: str = "stop") -> dict[str, Any]:
    return {"index": 0, "message": message, "logprobs": None, "finish_reason": finish_reason}


USAGE = {"prompt_tokens": 3, "completion_tokens": 9, "total_tokens": 12}


def whole(message: dict[str, Any], finish_reason: str = "stop", **config: Any) -> dict[str, Any]:
    reply = {"choices": [choice(message, finish_reason)], "usage": USAGE}
    return json.loads(make(**config).whole(reply))


def streamed(
    message: dict[str, Any], size: int, finish_reason: str = "stop", array: bool = False, **config: Any
) -> list[dict[str, Any]]:
    call = make(stream=True, array=array, **config)
    sent = call.chunk({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
    for delta in deltas(message, size):
        sent += call.chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
    sent += call.chunk({"choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason}]})
    sent += call.chunk({"choices": [], "usage": USAGE})
    sent += call.end()
    if array:
        return json.loads(sent)
    return [json.loads(event.removeprefix("data: ")) for event in sent.decode().split("\n\n") if event]


def merged(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The parts of all events, neighbouring texts of a kind joined, as clients show them."""
    parts: list[dict[str, Any]] = []
    for event in events:
        for part in event["candidates"][0]["content"]["parts"]:
            if part.get("text") == "":
                continue
            last = parts[-1] if parts else {}
            if "text" in part and "text" in last and part.get("thought") == last.get("thought"):
                last["text"] += part["text"]
            else:
                parts.append(dict(part))
    return parts


@given(replies(), st.integers(1, 9), st.booleans(), st.booleans())
def test_a_stream_says_what_a_whole_reply_says(
    message: dict[str, Any], size: int, thoughts: bool, array: bool
) -> None:
    config = {"thinkingConfig": {"includeThoughts": thoughts}}
    events = streamed(message, size, array=array, **config)
    reply = whole(message, **config)
    assert merged(events) == merged([reply])
    last, only = events[-1], reply["candidates"][0]
    assert last["candidates"][0]["finishReason"] == only["finishReason"] == "STOP"
    assert last["usageMetadata"] == reply["usageMetadata"]
    assert all("finishReason" not in event["candidates"][0] for event in events[:-1])
    for event in [*events, reply]:
        assert event["candidates"][0]["content"]["parts"], (
            "Google's clients drop a turn that has an empty event"
        )
        assert (event["responseId"], event["modelVersion"]) == ("spn_7", "gem")
    assert any(part.get("thought") for part in merged(events)) is (
        thoughts and bool(message.get("reasoning"))
    )


@given(replies(), st.integers(1, 9), st.booleans(), st.booleans())
def test_what_is_sent_back_is_what_was_answered(
    message: dict[str, Any], size: int, thoughts: bool, stream: bool
) -> None:
    """A client keeps one content for a reply, or one for each event; both are the message that the span holds."""
    config = {"thinkingConfig": {"includeThoughts": thoughts}}
    events = streamed(message, size, **config) if stream else [whole(message, **config)]
    history = [event["candidates"][0]["content"] for event in events]
    body = {"contents": [{"parts": [{"text": "hi"}]}, *history]}
    _, echoed = gemini.decode(json.dumps(body).encode(), Target("spn_8", 0.0, model="gem")).hub["messages"]

    capture = Capture()
    capture.take_reply({"choices": [choice(message)]})
    recorded = (capture.reply() or {})["message"]
    assert echoed["role"] == recorded["role"] == "assistant"
    assert (echoed["content"] or "") == (recorded["content"] or "")
    assert echoed.get("reasoning_content") == (recorded.get("reasoning") if thoughts else None)
    assert normal(echoed) == normal(recorded)


def normal(message: dict[str, Any]) -> list[Any]:
    return [
        (call["id"], call["type"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls", ())
    ]


CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"x": [1]}'}}
BROKEN = {"id": "c2", "type": "function", "function": {"name": "g", "arguments": '{"x": '}}


def test_a_call_is_one_part_of_the_last_event() -> None:
    events = streamed({"content": "So.", "tool_calls": [CALL, {**CALL, "id": "c3"}]}, 3, "tool_calls")
    assert [event["candidates"][0]["content"]["parts"] for event in events] == [
        [{"text": "So."}],
        [
            {"functionCall": {"id": "c1", "name": "f", "args": {"x": [1]}}},
            {"functionCall": {"id": "c3", "name": "f", "args": {"x": [1]}}},
        ],
    ]
    assert events[1]["candidates"][0]["finishReason"] == "STOP"
    assert events[1]["usageMetadata"] == {
        "promptTokenCount": 3,
        "candidatesTokenCount": 9,
        "totalTokenCount": 12,
    }


@pytest.mark.parametrize("arguments", ['{"x": ', "[1]", '"text"', "null", '{"x": NaN}', '{"x": "\\ud800"}'])
def test_a_call_that_is_no_object_is_named_malformed(arguments: str) -> None:
    broken = {**BROKEN, "function": {"name": "g", "arguments": arguments}}
    message = {"role": "assistant", "content": None, "tool_calls": [CALL, broken]}
    for reply in (whole(message, "tool_calls"), streamed(message, 4, "tool_calls")[-1]):
        candidate = reply["candidates"][0]
        assert candidate["finishReason"] == "MALFORMED_FUNCTION_CALL"
        assert candidate["finishMessage"] == f"Malformed function call: g({arguments})"
        assert candidate["content"]["parts"] == [{"text": ""}]


def test_a_call_cut_off_by_the_length_is_left_out() -> None:
    candidate = streamed({"content": "So", "tool_calls": [BROKEN]}, 4, "length")[-1]["candidates"][0]
    assert candidate["finishReason"] == "MAX_TOKENS" and "finishMessage" not in candidate
    assert candidate["content"]["parts"] == [{"text": ""}]


def test_no_arguments_are_an_empty_object() -> None:
    message = {"content": None, "tool_calls": [{**CALL, "function": {"name": "f", "arguments": ""}}]}
    parts = whole(message, "tool_calls")["candidates"][0]["content"]["parts"]
    assert parts == [{"functionCall": {"id": "c1", "name": "f", "args": {}}}]


@pytest.mark.parametrize(
    ("engine", "google"),
    [("stop", "STOP"), ("length", "MAX_TOKENS"), ("tool_calls", "STOP"), ("repetition", "OTHER")],
)
def test_finish_reasons(engine: str, google: str) -> None:
    assert whole({"content": "a"}, engine)["candidates"][0]["finishReason"] == google


def test_thoughts_are_counted_apart() -> None:
    usage = {
        **USAGE,
        "completion_tokens_details": {"reasoning_tokens": 4},
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    reply = json.loads(make().whole({"choices": [choice({"content": "a"})], "usage": usage}))
    assert reply["usageMetadata"] == {
        "promptTokenCount": 3,
        "candidatesTokenCount": 5,
        "thoughtsTokenCount": 4,
        "totalTokenCount": 12,
        "cachedContentTokenCount": 2,
    }


@pytest.mark.parametrize("array", [False, True])
def test_a_stream_that_is_asked_for_again_forgets_the_first(array: bool) -> None:
    def send(call: GeminiCall) -> bytes:
        delta = {"tool_calls": [{**CALL, "index": 0}]}
        sent = call.chunk({"choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        sent += call.chunk(
            {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}], "usage": USAGE}
        )
        return sent + call.end()

    call, untouched = make(stream=True, array=array), make(stream=True, array=array)
    broken = {"tool_calls": [{**BROKEN, "index": 0}]}
    call.chunk({"choices": [{"index": 0, "delta": {"content": "a", **broken}, "finish_reason": None}]})
    call.restart()
    assert send(call) == send(untouched)


def test_candidates_are_kept_apart() -> None:
    call = make(stream=True)
    sent = b""
    for index, text in [(0, "a"), (1, "x"), (0, "b")]:
        sent += call.chunk({"choices": [{"index": index, "delta": {"content": text}, "finish_reason": None}]})
    for index, reason in [(1, "stop"), (0, "length")]:
        sent += call.chunk({"choices": [{"index": index, "delta": {}, "finish_reason": reason}]})
    sent += call.end()
    events = [json.loads(event.removeprefix("data: ")) for event in sent.decode().split("\n\n") if event]
    texts = {0: "", 1: ""}
    for event in events:
        for candidate in event["candidates"]:
            texts[candidate["index"]] += "".join(part["text"] for part in candidate["content"]["parts"])
    assert texts == {0: "ab", 1: "x"}
    reasons = [(one["index"], one["finishReason"]) for one in events[-1]["candidates"]]
    assert reasons == [(0, "MAX_TOKENS"), (1, "STOP")]


def test_logprobs_are_sent_to_those_who_ask_and_none_is_lost() -> None:
    entries = [{"token": str(i), "logprob": -float(i), "top_logprobs": []} for i in range(4)]

    def chunk(text: str, first: int, end: bool = False) -> dict[str, Any]:
        return {
            "choices": [
                {
                    "index": 0,
                    "delta": {"content": text},
                    "logprobs": {"content": entries[first : first + 2]},
                    "token_ids": [first, first + 1],
                    "finish_reason": "stop" if end else None,
                }
            ]
        }

    def send(call: GeminiCall) -> list[dict[str, Any]]:
        sent = call.chunk(chunk("", 0)) + call.chunk(chunk("a", 2, end=True)) + call.end()
        found = [json.loads(event.removeprefix("data: ")) for event in sent.decode().split("\n\n") if event]
        return [event["candidates"][0] for event in found]

    first, last = send(make(stream=True, responseLogprobs=True))
    assert [one["tokenId"] for one in first["logprobsResult"]["chosenCandidates"]] == [0, 1, 2, 3]
    assert "logprobsResult" not in last and last["avgLogprobs"] == -1.5
    for candidate in send(make(stream=True)):
        assert not candidate.keys() & {"logprobsResult", "avgLogprobs"}


@pytest.mark.parametrize("begun", [False, True])
def test_an_error_ends_a_json_array(begun: bool) -> None:
    call = make(stream=True, array=True)
    sent = b""
    if begun:
        sent = call.chunk({"choices": [{"index": 0, "delta": {"content": "a"}, "finish_reason": None}]})
    sent += call.error_event(Failure(502, "gone"))
    error = {"error": {"code": 502, "message": "gone", "status": "UNAVAILABLE"}}
    assert json.loads(sent)[-1] == error
    assert json.loads(make(stream=True).error_event(Failure(502, "gone")).removeprefix(b"data: ")) == error


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (
            "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 input tokens, "
            "which exceeds this limit even without any output tokens.",
            "The input token count (513) exceeds the maximum number of tokens allowed (512).",
        ),
        (
            "Input length (1480) exceeds model's maximum context length (512)",
            "The input token count (1480) exceeds the maximum number of tokens allowed (512).",
        ),
        (
            "This model's maximum context length is 512 tokens. However, your prompt contains 99999 characters (more than",
            "The input token count exceeds the maximum number of tokens allowed (512).",
        ),
        ("something else", "something else"),
    ],
)
def test_overflow_in_googles_words(message: str, words: str) -> None:
    engine_error = {"error": {"message": message, "type": "BadRequestError"}}
    assert gemini.error(Failure(400, message, engine_error=engine_error)) == {
        "error": {"code": 400, "message": words, "status": "INVALID_ARGUMENT"}
    }


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (400, "INVALID_ARGUMENT"),
        (401, "UNAUTHENTICATED"),
        (403, "PERMISSION_DENIED"),
        (404, "NOT_FOUND"),
        (409, "ABORTED"),
        (413, "INVALID_ARGUMENT"),
        (429, "RESOURCE_EXHAUSTED"),
        (500, "INTERNAL"),
        (503, "UNAVAILABLE"),
    ],
)
def test_status_names(status: int, name: str) -> None:
    assert gemini.error(Failure(status, "m"))["error"]["status"] == name
