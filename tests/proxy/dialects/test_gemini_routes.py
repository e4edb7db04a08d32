"""Gemini's paths over a fake engine: Google's client, streams in both forms, keys, and errors in Google's shape."""

from __future__ import annotations

import json
from typing import Any

import pytest
from google.genai import errors, types

from tests.proxy.conftest import Served, serve, wait_for
from tests.proxy.dialects.clients import google_client
from tests.proxy.fake_engine import PROMPT_IDS, TOKENS, FakeEngine, Fault

TEXT = "".join(text for _, text, _ in TOKENS)
PATH = "/v1beta/models/gem:generateContent"
STREAM = "/v1beta/models/gem:streamGenerateContent"
BODY = {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]}
MESSAGE = {
    "role": "assistant",
    "reasoning": "The user wants the weather.",
    "content": "Let me look.",
    "tool_calls": [
        {
            "id": "chatcmpl-tool-1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Rome", "days": 2}'},
        }
    ],
}


def post(ready: Served, path: str, key: str | None, body: Any = BODY, **options: Any) -> Any:
    headers = {"x-goog-api-key": key} if key else {}
    if isinstance(body, bytes):
        return ready.http.post(path, content=body, headers=headers, **options)
    return ready.http.post(path, json=body, headers=headers, **options)


@pytest.mark.parametrize("stream", [False, True])
def test_googles_client_gets_an_answer(ready: Served, fake: FakeEngine, stream: bool) -> None:
    rollout, key = ready.rollout()
    with google_client(ready, key) as client:
        if stream:
            chunks = list(client.models.generate_content_stream(model="gem", contents="hi"))
            assert len(chunks) == 4, "each delta as it comes, then the end"
            reply, text = chunks[-1], "".join(chunk.text or "" for chunk in chunks)
        else:
            reply = client.models.generate_content(model="gem", contents="hi")
            text = reply.text
    span = ready.span(rollout)
    assert (text, reply.model_version, reply.response_id) == (TEXT, "gem", span.id)
    assert reply.candidates and reply.candidates[0].finish_reason == "STOP"
    assert reply.usage_metadata and reply.usage_metadata.total_token_count == 7
    assert (span.dialect, span.stream, span.trainable) == ("gemini", stream, True)
    assert span.prompt_tokens is not None and span.prompt_tokens.tolist() == PROMPT_IDS
    assert (span.reply or {})["message"] == {"role": "assistant", "content": TEXT}
    (sent,) = fake.requests
    assert sent["messages"] == [{"role": "user", "content": "hi"}] and sent["stream"] is stream


@pytest.mark.parametrize("stream", [False, True])
def test_a_chat_session_with_a_function(ready: Served, fake: FakeEngine, stream: bool) -> None:
    """What Google's own session keeps of the reply decodes to the message of the span."""
    rollout, key = ready.rollout()
    fake.message = MESSAGE
    declaration = types.FunctionDeclaration(name="weather", parameters_json_schema={"type": "object"})
    config = types.GenerateContentConfig(
        tools=[types.Tool(function_declarations=[declaration])],
        thinking_config=types.ThinkingConfig(include_thoughts=True),
    )
    with google_client(ready, key) as client:
        chat = client.chats.create(model="gem", config=config)

        def send(message: Any) -> list[types.GenerateContentResponse]:
            return list(chat.send_message_stream(message)) if stream else [chat.send_message(message)]

        replies = send("weather?")
        (call,) = [call for reply in replies for call in reply.function_calls or ()]
        assert (call.name, call.args, call.id) == ("weather", {"city": "Rome", "days": 2}, "chatcmpl-tool-1")
        result = types.FunctionResponse(name="weather", id=call.id, response={"output": "rain"})
        fake.message = None
        send(types.Part(function_response=result))
    first, _ = sorted(ready.spans(rollout), key=lambda span: span.started_at)
    _, echoed, answer = fake.requests[-1]["messages"]
    assert answer == {"role": "tool", "tool_call_id": call.id, "name": "weather", "content": "rain"}
    recorded = dict((first.reply or {})["message"])
    assert echoed.pop("reasoning_content") == recorded.pop("reasoning")
    for message in (echoed, recorded):
        function = message["tool_calls"][0]["function"]
        function["arguments"] = json.loads(function["arguments"])
    assert echoed == recorded


def test_without_alt_sse_a_stream_is_a_json_array(ready: Served) -> None:
    _, key = ready.rollout()
    response = post(ready, STREAM, key)
    assert response.headers["content-type"].startswith("application/json")
    parts = [event["candidates"][0]["content"]["parts"][0]["text"] for event in response.json()]
    assert "".join(parts) == TEXT
    events = post(ready, STREAM + "?alt=sse", key)
    assert events.headers["content-type"].startswith("text/event-stream")
    assert (
        "".join(json.loads(e[6:])["candidates"][0]["content"]["parts"][0]["text"] for e in split(events))
        == TEXT
    )


def split(response: Any) -> list[str]:
    return [event for event in response.text.split("\n\n") if event]


@pytest.mark.parametrize(
    "path",
    [
        PATH,
        "/v1/models/gem:generateContent",
        "/v1beta/models/a/b:7b:generateContent",
        "/v1/v1beta/models/gem:generateContent",
    ],
)
def test_paths_that_reply(ready: Served, path: str) -> None:
    _, key = ready.rollout()
    response = post(ready, path, key)
    assert response.status_code == 200
    assert response.json()["modelVersion"] == path.split("models/")[1].removesuffix(":generateContent")


def test_the_key_comes_in_each_of_its_places(ready: Served, capsys: pytest.CaptureFixture[str]) -> None:
    rollout, key = ready.rollout()
    assert ready.http.post(f"{PATH}?key={key}", json=BODY).status_code == 200
    assert ready.http.post(f"/r/{key}{PATH}", json=BODY).status_code == 200
    bearer = {"Authorization": f"Bearer {key}"}
    assert ready.http.post(f"{PATH}?key=wrong", json=BODY, headers=bearer).status_code == 200, (
        "headers come first"
    )
    wrong = ready.http.post(f"{PATH}?key={key}x", json=BODY)
    assert wrong.status_code == 401 and key not in wrong.text
    assert ready.http.post(f"/v1/chat/completions?key={key}", json={}).status_code == 401, (
        "Google's places only"
    )
    output = capsys.readouterr()
    assert key not in output.out + output.err
    assert all(key.encode() not in (span.request or b"") for span in ready.spans(rollout))


def test_models(ready: Served) -> None:
    _, key = ready.rollout()
    with google_client(ready, key) as client:
        (model,) = list(client.models.list())
        one = client.models.get(model="anything")
    assert (model.name, model.input_token_limit) == ("models/pol", 512)
    assert (one.name, one.input_token_limit) == ("models/anything", 512)
    for path in ("/v1beta/models", "/v1/models"):
        (listed,) = ready.http.get(path, headers={"x-goog-api-key": key}).json()["models"]
        assert listed["name"] == "models/pol"
    listed = ready.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"}).json()
    assert listed["object"] == "list", "without Google's headers the path is OpenAI's"


def test_tokens_are_counted_by_the_engine(ready: Served) -> None:
    rollout, key = ready.rollout()
    with google_client(ready, key) as client:
        assert client.models.count_tokens(model="gem", contents="hi").total_tokens == len(PROMPT_IDS)
    inner = {"generateContentRequest": {"model": "models/gem", **BODY}}
    response = post(ready, "/v1beta/models/gem:countTokens", key, inner)
    assert response.json() == {"totalTokens": len(PROMPT_IDS)}
    assert ready.spans(rollout) == [], "nothing was sampled"
    bad = post(ready, "/v1beta/models/gem:countTokens", key, {"contents": []})
    assert check_error(bad, 400, "INVALID_ARGUMENT")


def check_error(response: Any, status: int, name: str) -> str:
    """Google's shape; returns the message."""
    assert response.status_code == status, response.text
    document = response.json()
    assert document.keys() == {"error"} and document["error"].keys() == {"code", "message", "status"}
    assert (document["error"]["code"], document["error"]["status"]) == (status, name)
    return document["error"]["message"]


@pytest.mark.parametrize("key", [None, "st-nobody"])
@pytest.mark.parametrize(
    "path", [PATH, STREAM, "/v1beta/models/gem:countTokens", "/v1/models/gem:generateContent"]
)
def test_unknown_keys(ready: Served, path: str, key: str | None) -> None:
    check_error(post(ready, path, key), 401, "UNAUTHENTICATED")


def test_other_refusals_have_googles_shape(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    check_error(post(ready, PATH, "st-runner-test"), 403, "PERMISSION_DENIED")
    check_error(post(ready, "/v1beta/models/gem:embedContent", key), 404, "NOT_FOUND")
    check_error(post(ready, "/v1beta/cachedContents", key), 404, "NOT_FOUND")
    check_error(ready.http.get(PATH, headers={"x-goog-api-key": key}), 405, "INVALID_ARGUMENT")
    check_error(post(ready, "/v1beta/models", key), 405, "INVALID_ARGUMENT")
    ready.ok("POST", f"/api/rollouts/{rollout}/finish", {"state": "succeeded"})
    wait_for(lambda: post(ready, PATH, key).status_code != 200)
    check_error(post(ready, PATH, key), 409, "ABORTED")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"contents": [{"parts": [{"text": "\xff"}]}]}',
        b'{"contents": [{"parts": [{"text": "\\ud800"}]}]}',
        b'{"contents": ' + b"[" * 5000 + b"]" * 5000 + b"}",
        b'{"contents": [{"parts": [{"functionCall": {"name": "f", "args": ' + b'{"a":' * 300 + b"1" + b"}" * 300 + b"}}]}]}",
        {"contents": []},
        {"contents": [{"role": "system", "parts": [{"text": "a"}]}]},
        {"contents": [{"parts": []}]},
        {"contents": [{"parts": [{"functionResponse": {"name": "f", "response": {}}}]}]},
        {**BODY, "generationConfig": {"temperature": []}},
        {**BODY, "tools": [{"functionDeclarations": [{"name": "f", "parametersJsonSchema": json.loads('{"a":' * 300 + "1" + "}" * 300)}]}]},
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", [PATH, STREAM + "?alt=sse"])
def test_bad_bodies(ready: Served, fake: FakeEngine, path: str, body: Any) -> None:
    rollout, key = ready.rollout()
    check_error(post(ready, path, key, body), 400, "INVALID_ARGUMENT")
    assert fake.requests == [] and ready.spans(rollout) == []


def test_a_huge_body(sqlite_url: str, fake: FakeEngine) -> None:
    with serve(sqlite_url, max_body_bytes=1024) as small:
        small.policy()
        small.engine(fake)
        _, key = small.rollout()
        message = check_error(post(small, PATH, key, b" " * 2000), 413, "INVALID_ARGUMENT")
        assert "larger than 1024 bytes" in message


def test_unknown_fields_are_recorded(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    body = {**BODY, "safetySettings": [], "tools": [{"googleSearch": {}}], "generationConfig": {"seed": 1}}
    assert post(ready, PATH, key, body).status_code == 200
    assert ready.span(rollout).stripped == ["safetySettings", "seed", "tools.googleSearch"]
    assert not fake.requests[0].keys() & {"safetySettings", "tools", "seed"}


OVERFLOW = (
    "This model's maximum context length is 512 tokens. However, your prompt contains 900 input tokens, which exceeds "
    "this limit even without any output tokens."
)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("status", "message", "name"),
    [
        (
            400,
            "The input token count (900) exceeds the maximum number of tokens allowed (512).",
            "INVALID_ARGUMENT",
        ),
        (429, "busy", "RESOURCE_EXHAUSTED"),
        (500, "broken", "INTERNAL"),
    ],
)
def test_engine_errors_reach_googles_client(
    ready: Served, fake: FakeEngine, stream: bool, status: int, message: str, name: str
) -> None:
    _, key = ready.rollout()
    fake.fault = Fault("status", argument=(status, OVERFLOW if status == 400 else message))
    kind = errors.ClientError if status < 500 else errors.ServerError
    with google_client(ready, key) as client, pytest.raises(kind) as caught:
        if stream:
            list(client.models.generate_content_stream(model="gem", contents="hi"))
        else:
            client.models.generate_content(model="gem", contents="hi")
    assert (caught.value.code, caught.value.status, caught.value.message) == (status, name, message)


@pytest.mark.parametrize("array", [False, True])
def test_a_stream_that_breaks_ends_with_an_error(ready: Served, fake: FakeEngine, array: bool) -> None:
    rollout, key = ready.rollout()
    fake.fault = Fault("reset_after", argument=3)
    response = post(ready, STREAM + ("" if array else "?alt=sse"), key)
    events = response.json() if array else [json.loads(event[6:]) for event in split(response)]
    assert [list(event) for event in events[:-1]] == [["candidates", "modelVersion", "responseId"]] * 2
    assert events[-1]["error"]["code"] == 502 and events[-1]["error"]["status"] == "UNAVAILABLE"
    assert ready.span(rollout).status == "upstream_error"
    fake.fault = Fault("reset_after", argument=3)
    with google_client(ready, key) as client, pytest.raises(errors.ServerError) as caught:
        list(client.models.generate_content_stream(model="gem", contents="hi"))
    assert caught.value.status == "UNAVAILABLE"
