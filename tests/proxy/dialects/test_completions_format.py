"""Text completions: what the capture reads, and what the caller gets back of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy import hub
from proxy.capture import Capture
from proxy.dialects import completions
from proxy.dialects.base import BadRequest, Failure, Target

TARGET = Target("spn_1", 0.0)
TOKENS = st.lists(
    st.tuples(st.integers(0, 1000), st.text(max_size=4), st.floats(-20, 0)), min_size=1, max_size=8
)


def decode(**fields: Any) -> completions.CompletionCall:
    return completions.decode(json.dumps({"model": "agent", "prompt": "hi", **fields}).encode(), TARGET)


def logprobs(tokens: list[tuple[int, str, float]]) -> dict[str, Any]:
    return {
        "text_offset": [0] * len(tokens),
        "tokens": [text for _, text, _ in tokens],
        "token_logprobs": [logprob for _, _, logprob in tokens],
        "top_logprobs": [{text: logprob} for _, text, logprob in tokens],
    }


def choice(tokens: list[tuple[int, str, float]], end: bool = True, index: int = 0) -> dict[str, Any]:
    return {
        "index": index,
        "text": "".join(text for _, text, _ in tokens),
        "logprobs": logprobs(tokens),
        "finish_reason": "stop" if end else None,
        "stop_reason": None,
        "token_ids": [token for token, _, _ in tokens],
        "prompt_token_ids": [7, 8],
        "prompt_logprobs": None,
    }


def document(*choices: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return {
        "id": "cmpl-1",
        "object": "text_completion",
        "model": "engine",
        "choices": list(choices),
        **fields,
    }


def usage(count: int) -> dict[str, int]:
    return {"prompt_tokens": 2, "completion_tokens": count, "total_tokens": 2 + count}


def stream(call: completions.CompletionCall, chunks: list[dict[str, Any]]) -> tuple[Capture, list[Any]]:
    capture, sent = Capture(), b""
    for chunk in chunks:
        found = call.to_hub(chunk)
        capture.take_chunk(found, 1.0)
        sent += call.chunk(found)
    sent += call.end()
    events = [event[len("data: ") :] for event in sent.decode().split("\n\n") if event]
    assert events.pop() == "[DONE]"
    return capture, [json.loads(event) for event in events]


@given(TOKENS, st.data())
def test_a_stream_holds_what_the_whole_reply_holds(tokens: list[tuple[int, str, float]], data: Any) -> None:
    """However the engine cuts it: the same capture, the same text, the same logprobs where they were asked for."""
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, len(tokens) - 1)))) - {len(tokens)})
    asked = data.draw(st.sampled_from([{}, {"logprobs": 0}, {"return_token_ids": True}]))
    pieces = [tokens[a:b] for a, b in zip([0, *cuts], [*cuts, len(tokens)], strict=True)]
    chunks = [document(choice(piece, end=i == len(pieces) - 1)) for i, piece in enumerate(pieces)]
    for chunk in chunks[1:]:
        chunk["choices"][0]["prompt_token_ids"] = None
    chunks.append(document(usage=usage(len(tokens))))
    streamed, events = stream(decode(stream=True, **asked), chunks)

    call, whole = decode(**asked), Capture()
    reply = call.to_hub(document(choice(tokens), usage=usage(len(tokens))))
    whole.take_reply(reply)
    written = json.loads(call.whole(reply))

    assert streamed.reply() == whole.reply()
    assert streamed.prompt_ids == whole.prompt_ids == [7, 8]
    assert streamed.completion_ids == whole.completion_ids == [token for token, _, _ in tokens]
    assert streamed.logprobs == whole.logprobs == [logprob for _, _, logprob in tokens]
    texts = [event["choices"][0]["text"] for event in events]
    assert "".join(texts) == written["choices"][0]["text"] == "".join(text for _, text, _ in tokens)
    assert events[-1]["choices"][0]["finish_reason"] == written["choices"][0]["finish_reason"] == "stop"
    if "logprobs" in asked:
        values = [value for event in events for value in event["choices"][0]["logprobs"]["token_logprobs"]]
        assert values == written["choices"][0]["logprobs"]["token_logprobs"] == whole.logprobs
        assert "content" not in written["choices"][0]["logprobs"]
    if "return_token_ids" in asked:
        assert events[0]["choices"][0]["prompt_token_ids"] == [7, 8]
        assert [t for event in events for t in event["choices"][0]["token_ids"]] == streamed.completion_ids


@pytest.mark.parametrize("streamed", [False, True])
def test_what_nobody_asked_for_is_not_sent(streamed: bool) -> None:
    call = decode(stream=streamed)
    found = call.to_hub(document(choice([(5, "a", -0.5)]), usage=usage(1)))
    if streamed:
        written = json.loads(call.chunk(found).removeprefix(b"data: "))
        assert "usage" not in written
    else:
        written = json.loads(call.whole(found))
        assert written["usage"] == usage(1)
    assert written["choices"] == [{"index": 0, "text": "a", "logprobs": None, "finish_reason": "stop"}]
    assert "prompt_token_ids" not in written
    assert (written["model"], written["object"]) == ("agent", "text_completion")


def test_the_usage_chunk_is_for_those_who_asked() -> None:
    _, events = stream(decode(stream=True), [document(choice([(5, "a", -0.5)])), document(usage=usage(1))])
    assert len(events) == 1
    call = decode(stream=True, stream_options={"include_usage": True})
    _, events = stream(call, [document(choice([(5, "a", -0.5)])), document(usage=usage(1))])
    assert (events[1]["choices"], events[1]["usage"]) == ([], usage(1))


@pytest.mark.parametrize(("prompt", "text"), [("Once ", "Once upon"), ([7, 8], "ab" + "upon")])
@pytest.mark.parametrize("streamed", [False, True])
def test_an_echo_is_put_back_and_kept_from_the_capture(prompt: Any, text: str, streamed: bool) -> None:
    """vLLM leaves the prompt's text out where token ids are asked for, and counts its logprobs in."""
    call = decode(prompt=prompt, echo=True, logprobs=1, stream=streamed)
    assert call.untrainable == "echo"
    found = choice([(7, "a", -1.0), (8, "b", -2.0), (5, "upon", -0.5)])
    found |= {"text": "upon", "token_ids": [5]}
    capture, reply = Capture(), call.to_hub(document(found))
    if streamed:
        capture.take_chunk(reply, 1.0)
        written = json.loads(call.chunk(reply).removeprefix(b"data: "))
    else:
        capture.take_reply(reply)
        written = json.loads(call.whole(reply))
    assert (capture.completion_ids, capture.logprobs) == ([5], [-0.5])
    assert written["choices"][0]["text"] == text
    assert written["choices"][0]["logprobs"]["token_logprobs"] == [-1.0, -2.0, -0.5]
    message = (capture.reply() or {})["message"]
    assert message == {"role": "assistant", "content": "upon"}, "the span holds what was sampled"


def test_a_stream_that_is_asked_for_again_forgets_the_first() -> None:
    call = decode(prompt="p", echo=True, stream=True)
    call.to_hub(document(choice([(7, "a", -1.0), (8, "b", -2.0), (5, "upon", -0.5)])))
    call.restart()
    second = {**choice([(5, "upon", -0.5)]), "prompt_token_ids": None}
    sent = call.chunk(call.to_hub(document(second)))
    assert json.loads(sent.removeprefix(b"data: "))["choices"][0]["text"] == "upon"


def test_an_echo_without_sampling_gives_no_tokens() -> None:
    call = decode(echo=True, max_tokens=0)
    found = {**choice([(7, "a", -1.0), (8, "b", -2.0)]), "text": "", "token_ids": [99]}
    capture = Capture()
    capture.take_reply(call.to_hub(document(found)))
    assert (capture.completion_ids, capture.logprobs) == ([], []), "the token that vLLM samples all the same"


def test_of_several_prompts_each_choice_echoes_its_own() -> None:
    call = decode(prompt=["x", "y"], n=2, echo=True)
    found = [choice([(7, "a", -1.0), (8, "b", -1.0), (i, str(i), -1.0)], index=i) for i in (2, 0, 3, 1)]
    for one in found:
        one["text"] = str(one["index"])
    reply = call.to_hub(document(*found))
    assert reply["prompt_token_ids"] == [7, 8]
    written = json.loads(call.whole(reply))
    assert {one["index"]: one["text"] for one in written["choices"]} == {0: "x0", 1: "x1", 2: "y2", 3: "y3"}


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"prompt": [1, 2]}, None),
        ({"prompt": ["hi"]}, None),
        ({"prompt": [[1, 2]]}, None),
        ({"suffix": "end"}, None),
        ({"best_of": 3}, None),
        ({"prompt": ["a", "b"]}, "multiple_choices"),
        ({"prompt": [[1], [2]]}, "multiple_choices"),
        ({"n": 2}, "multiple_choices"),
        ({"echo": True}, "echo"),
    ],
)
def test_what_can_be_trained_on(fields: dict[str, Any], reason: str | None) -> None:
    assert decode(**fields).untrainable == reason


def test_the_hub_is_the_request() -> None:
    call = decode(temperature=0.5, best_of=3, messages=[{"role": "user"}], unheard_of=1)
    assert call.hub == {"model": "agent", "prompt": "hi", "temperature": 0.5, "unheard_of": 1}
    assert call.ignored == ["best_of", "messages"]


@pytest.mark.parametrize(("asked", "sent"), [({}, 0), ({"logprobs": 0}, 0), ({"logprobs": 3}, 3)])
def test_the_capture_asks_for_the_sampled_tokens_logprob(asked: dict[str, int], sent: int) -> None:
    body = decode(**asked).hub
    hub.add_capture(body)
    assert (body["logprobs"], body["return_token_ids"]) == (sent, True)


@pytest.mark.parametrize(
    ("raw", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
        (b'{"prompt": "\\ud800"}', None),
        (b"{}", "prompt"),
        (b'{"prompt": null}', "prompt"),
        (b'{"prompt": []}', "prompt"),
        (b'{"prompt": [[]]}', "prompt"),
        (b'{"prompt": [1, "a"]}', "prompt"),
        (b'{"prompt": ["a", [1]]}', "prompt"),
        (b'{"prompt": [true]}', "prompt"),
        (b'{"prompt": [1.5]}', "prompt"),
        (b'{"prompt": {"a": 1}}', "prompt"),
        (b'{"prompt": "a", "prompt_embeds": "AAAA"}', "prompt_embeds"),
        (b'{"prompt": "a", "n": "2"}', "n"),
        (b'{"prompt": "a", "echo": 1}', "echo"),
        (b'{"prompt": "a", "stream": 1}', "stream"),
        (b'{"prompt": "a", "logprobs": true}', "logprobs"),
        (b'{"prompt": "a", "max_tokens": "1"}', "max_tokens"),
        (b'{"prompt": "a", "stream_options": []}', "stream_options"),
        (b'{"prompt": "a", "model": 3}', "model"),
    ],
)
def test_bad_requests_name_the_field(raw: bytes, param: str | None) -> None:
    with pytest.raises(BadRequest) as caught:
        completions.decode(raw, TARGET)
    assert caught.value.param == param


def test_errors_have_openais_shape() -> None:
    failure = Failure(502, "gone", "engine_broke_off")
    event = decode(stream=True).error_event(failure)
    assert json.loads(event.removeprefix(b"data: ")) == completions.error(failure)
    assert completions.error(failure)["error"] == {
        "message": "gone",
        "type": "server_error",
        "param": None,
        "code": "engine_broke_off",
    }
