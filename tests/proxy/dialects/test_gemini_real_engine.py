"""Gemini over a real vLLM, with Google's own client."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from google.genai import errors, types

from tests.engine_fixture import WINDOW, EngineProcess
from tests.proxy.conftest import Served, serve
from tests.proxy.dialects.clients import google_client
from tests.proxy.test_real_engine import CALL, check, policy_body

pytestmark = pytest.mark.engine

WEATHER: dict[str, Any] = {
    "name": "weather",
    "parameters": {"type": "OBJECT", "properties": {"city": {"type": "STRING"}}, "required": ["city"]},
}


@pytest.fixture(scope="module")
def served(engine: EngineProcess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serve(f"sqlite:///{tmp_path_factory.mktemp('gemini') / 'spans.db'}") as served:
        served.ok("PUT", "/api/policies/pol", policy_body(engine))
        yield served


@pytest.fixture
def real(served: Served, base_weights: EngineProcess) -> Served:
    engine = served.ok("PUT", "/api/engines/real", {"policy": "pol", "base_url": base_weights.base_url})
    assert engine["state"] == "ready"
    return served


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_is_recorded_whole(real: Served, stream: bool) -> None:
    rollout, key = real.rollout()
    config = types.GenerateContentConfig(
        max_output_tokens=12, system_instruction="Be brief.", temperature=0.1
    )
    with google_client(real, key) as client:
        if stream:
            chunks = list(client.models.generate_content_stream(model="m", contents="hi", config=config))
            last, text = chunks[-1], "".join(chunk.text or "" for chunk in chunks)
        else:
            last = client.models.generate_content(model="m", contents="hi", config=config)
            text = last.text or ""
    span = real.span(rollout)
    check(span)
    assert span.reply is not None and span.completion_tokens is not None and span.prompt_tokens is not None
    assert span.dialect == "gemini" and (span.reply["message"]["content"] or "") == text
    assert last.response_id == span.id and last.model_version == "m"
    assert last.candidates and last.candidates[0].finish_reason in ("STOP", "MAX_TOKENS")
    usage = last.usage_metadata
    assert usage is not None and usage.candidates_token_count == len(span.completion_tokens)
    assert usage.prompt_token_count == len(span.prompt_tokens)
    assert "temperature" in span.stripped


@pytest.mark.parametrize("stream", [False, True])
def test_a_session_with_a_function_goes_on_from_what_was_recorded(
    real: Served, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model is forced to call; then the client's history is rendered to the tokens that were logged."""
    from proxy.dialects.gemini import request as gemini_request

    plain = gemini_request._build

    def forced(value: Any, target: Any) -> Any:
        call = plain(value, target)
        if len(call.hub["messages"]) == 1:
            call.hub["structured_outputs"] = {"regex": CALL}
        return call

    monkeypatch.setattr(gemini_request, "_build", forced)
    rollout, key = real.rollout()
    tool = types.Tool(function_declarations=[types.FunctionDeclaration(**WEATHER)])
    config = types.GenerateContentConfig(tools=[tool], max_output_tokens=200)
    with google_client(real, key) as client:
        chat = client.chats.create(model="m", config=config)

        def send(message: Any) -> list[types.GenerateContentResponse]:
            return list(chat.send_message_stream(message)) if stream else [chat.send_message(message)]

        replies = send("weather?")
        (call,) = [call for reply in replies for call in reply.function_calls or ()]
        assert call.name == "weather" and (call.args or {})["city"] in ("Rome", "Oslo")
        answer = types.Part(
            function_response=types.FunctionResponse(name="weather", id=call.id, response={"output": "rain"})
        )
        send(answer)
    first, second = sorted(real.spans(rollout), key=lambda span: span.started_at)
    assert first.untrainable_reason == "structured_outputs" and second.trainable
    assert first.reply is not None and second.prompt_tokens is not None and first.prompt_tokens is not None
    assert first.reply["message"]["tool_calls"][0]["id"] == call.id
    prefix = len(first.prompt_tokens)
    assert second.prompt_tokens[:prefix].tolist() == first.prompt_tokens.tolist()
    assert len(second.prompt_tokens) > prefix + 20


def test_tokens_are_counted_by_the_engine(real: Served) -> None:
    rollout, key = real.rollout()
    body = {
        "contents": [{"parts": [{"text": "count the words"}]}],
        "tools": [{"functionDeclarations": [WEATHER]}],
    }
    with google_client(real, key) as client:
        alone = client.models.count_tokens(model="m", contents="count the words").total_tokens
        client.models.generate_content(model="m", contents="count the words")
    headers = {"x-goog-api-key": key}
    inner = {"generateContentRequest": {"model": "models/m", **body}}
    whole = real.http.post("/v1beta/models/m:countTokens", json=inner, headers=headers).json()["totalTokens"]
    real.http.post("/v1/models/m:generateContent", json=body, headers=headers).raise_for_status()
    spans = sorted(real.spans(rollout), key=lambda span: span.started_at)
    assert [len(span.prompt_tokens) for span in spans if span.prompt_tokens is not None] == [alone, whole]


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_in_googles_form(real: Served, stream: bool) -> None:
    rollout, key = real.rollout()
    config = types.GenerateContentConfig(max_output_tokens=6, response_logprobs=True, logprobs=2)
    with google_client(real, key) as client:
        if stream:
            replies = list(client.models.generate_content_stream(model="m", contents="hi", config=config))
        else:
            replies = [client.models.generate_content(model="m", contents="hi", config=config)]
    span = real.span(rollout)
    assert span.completion_tokens is not None and span.logprobs is not None
    results = [reply.candidates[0].logprobs_result for reply in replies if reply.candidates]
    chosen = [one for result in results if result for one in result.chosen_candidates or ()]
    assert [one.token_id for one in chosen] == span.completion_tokens.tolist()
    assert [one.log_probability for one in chosen] == pytest.approx(span.logprobs.tolist(), abs=1e-6)
    tops = [top for result in results if result for top in result.top_candidates or ()]
    assert len(tops) == len(chosen) and all(len(top.candidates or ()) >= 2 for top in tops)


@pytest.mark.parametrize(
    ("contents", "config", "message"),
    [
        ("long " * 3000, {}, f"exceeds the maximum number of tokens allowed ({WINDOW})"),
        ("hi", {"max_output_tokens": -1}, "max_tokens"),
        ("hi", {"candidate_count": -1}, "n must be"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses(
    real: Served, stream: bool, contents: str, config: dict[str, Any], message: str
) -> None:
    _, key = real.rollout()
    options: dict[str, Any] = {"model": "m", "contents": contents, "config": config}
    with google_client(real, key) as client, pytest.raises(errors.ClientError) as caught:
        if stream:
            list(client.models.generate_content_stream(**options))
        else:
            client.models.generate_content(**options)
    assert (caught.value.code, caught.value.status) == (400, "INVALID_ARGUMENT")
    assert message in (caught.value.message or "")


def test_a_response_schema_is_kept_and_marked(real: Served) -> None:
    rollout, key = real.rollout()
    schema = {"type": "OBJECT", "properties": {"ok": {"type": "BOOLEAN"}}, "required": ["ok"]}
    config = {"response_mime_type": "application/json", "response_schema": schema, "max_output_tokens": 60}
    with google_client(real, key) as client:
        client.models.generate_content(model="m", contents="hi", config=config)
    assert real.span(rollout).untrainable_reason == "response_format"
