"""The routes of the Responses API, called by the official client over an engine that answers at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from spanlog.errors import DatabaseUnreachable
from tests.proxy.conftest import Served
from tests.proxy.dialects.responses_replies import TOOLS, chunk
from tests.proxy.fake_engine import PROMPT_IDS, FakeEngine, Fault

TEXT = "Hello wörld"
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def agent(ready: Served) -> Iterator[tuple[str, openai.OpenAI]]:
    """A rollout and the official client with its key."""
    rollout, key = ready.rollout()
    with openai.OpenAI(base_url=ready.url + "/v1", api_key=key, max_retries=0) as client:
        yield rollout, client


@pytest.fixture
def client(agent: tuple[str, openai.OpenAI]) -> openai.OpenAI:
    return agent[1]


def create(client: openai.OpenAI, **fields: Any) -> Any:
    ask: Any = client.responses.create
    return ask(**{"model": "my-model", "input": "hi", **fields})


def events(*chunks: dict[str, Any]) -> list[bytes]:
    return [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks] + [b"data: [DONE]\n\n"]


def test_a_whole_reply(ready: Served, agent: tuple[str, openai.OpenAI], fake: FakeEngine) -> None:
    rollout, client = agent
    reply = create(client, instructions="Be brief", max_output_tokens=9, user="u")
    assert (reply.output_text, reply.status, reply.model) == (TEXT, "completed", "my-model")
    assert reply.usage is not None and reply.usage.input_tokens == len(PROMPT_IDS)
    sent = fake.requests[-1]
    assert sent["messages"] == [{"role": "system", "content": "Be brief"}, USER]
    assert (sent["max_completion_tokens"], sent["temperature"]) == (9, 1.0)
    span = ready.span(rollout)
    assert (span.dialect, span.status, span.trainable) == ("responses", "ok", True)
    assert reply.id == "resp_" + span.id.removeprefix("spn_")
    assert span.request["instructions"] == "Be brief" and span.hub["messages"] == sent["messages"]
    assert "user" in span.stripped


def test_a_stream(ready: Served, agent: tuple[str, openai.OpenAI]) -> None:
    rollout, client = agent
    with client.responses.stream(model="my-model", input="hi") as stream:
        seen = list(stream)
    assert "".join(event.delta for event in seen if event.type == "response.output_text.delta") == TEXT
    assert seen[-1].type == "response.completed" and seen[-1].response.output_text == TEXT
    assert ready.span(rollout).completion_tokens is not None


def test_streamed_tools_of_each_kind(client: openai.OpenAI, fake: FakeEngine) -> None:
    calls = [("read", '{"path": "a"}'), ("crm__find", "{}"), ("patch", '{"input": "*** Begin\\n\\u00e9"}')]
    chunks = [
        chunk({"tool_calls": [{"index": i, "id": f"c{i}", "function": {"name": name, "arguments": text}}]})
        for i, (name, text) in enumerate(calls)
    ]
    fake.fault = Fault("raw", 1, events(*chunks, chunk({}, finish_reason="tool_calls")))
    with client.responses.stream(model="m", input="hi", tools=TOOLS) as stream:  # type: ignore[arg-type]
        output: Any = stream.get_final_response().output
    read, find, patch = output
    assert read.type == find.type == "function_call" and patch.type == "custom_tool_call"
    assert (read.name, read.arguments, read.call_id) == ("read", '{"path": "a"}', "c0")
    assert (find.name, find.namespace) == ("find", "crm")
    assert (patch.name, patch.input) == ("patch", "*** Begin\né")


def test_a_stored_response_is_continued(client: openai.OpenAI, fake: FakeEngine) -> None:
    """Each request holds only what is new; instructions are not taken over."""
    call = {"index": 0, "id": "c0", "function": {"name": "read", "arguments": "{}"}}
    fake.fault = Fault("raw", 1, events(chunk({"tool_calls": [call]}), chunk({}, finish_reason="tool_calls")))
    with create(client, instructions="first", tools=TOOLS, stream=True) as stream:
        first = list(stream)[-1].response
    output = {"type": "function_call_output", "call_id": "c0", "output": "A"}
    second = create(client, previous_response_id=first.id, input=[output], instructions="second")
    assert second.previous_response_id == first.id
    function = {"name": "read", "arguments": "{}"}
    turn = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c0", "type": "function", "function": function}],
    }
    history = [USER, turn, {"role": "tool", "tool_call_id": "c0", "content": "A"}]
    assert fake.requests[-1]["messages"] == [{"role": "system", "content": "second"}, *history]
    create(client, previous_response_id=second.id, input="more")
    more = {"role": "user", "content": "more"}
    assert fake.requests[-1]["messages"] == [*history, {"role": "assistant", "content": TEXT}, more]


def test_items_are_named_instead_of_repeated(client: openai.OpenAI, fake: FakeEngine) -> None:
    reply = create(client)
    reference = {"type": "item_reference", "id": reply.output[0].id}
    create(client, input=[USER, reference, {"role": "user", "content": "more"}])
    assert fake.requests[-1]["messages"][1] == {"role": "assistant", "content": TEXT}
    with pytest.raises(openai.BadRequestError, match="not found") as caught:
        create(client, input=[USER, {"type": "item_reference", "id": reply.output[0].id[:-1] + "7"}])
    assert caught.value.code == "item_not_found"


def test_a_stored_response_is_given_out_again(ready: Served, client: openai.OpenAI) -> None:
    reply = create(client, metadata={"a": "b"})
    again = client.responses.retrieve(reply.id)
    assert again.to_dict() == reply.to_dict()
    with pytest.raises(openai.APIStatusError) as caught:
        client.responses.delete(reply.id)
    assert caught.value.status_code == 405
    assert caught.value.body == {
        "message": f"Use GET for /v1/responses/{reply.id}.",
        "type": "invalid_request_error",
        "param": None,
        "code": "method_not_allowed",
    }


def test_what_is_not_the_callers_is_not_found(ready: Served, client: openai.OpenAI) -> None:
    unstored = create(client, store=False).id
    _, other_key = ready.rollout()
    with openai.OpenAI(base_url=ready.url + "/v1", api_key=other_key, max_retries=0) as other:
        foreign = create(other).id
    absent = "resp_" + "0" * 26
    for name in (unstored, foreign, absent, "resp_\0", foreign.removeprefix("resp_")):
        with pytest.raises(openai.BadRequestError) as refused:
            create(client, previous_response_id=name)
        assert refused.value.code == "previous_response_not_found"
        assert (refused.value.param, f"'{name}' not found" in refused.value.message) == (
            "previous_response_id",
            True,
        )
    for name in (unstored, foreign, absent, "resp_%00", f"{foreign}/input_items"):
        with pytest.raises(openai.NotFoundError, match="not found"):
            client.responses.retrieve(name)


def test_an_output_without_its_call(client: openai.OpenAI) -> None:
    reply = create(client)
    output = {"type": "function_call_output", "call_id": "nobody", "output": "x"}
    with pytest.raises(openai.BadRequestError, match="No tool call found"):
        create(client, previous_response_id=reply.id, input=[output])


def test_a_failed_reply_cannot_be_continued(
    ready: Served, agent: tuple[str, openai.OpenAI], fake: FakeEngine
) -> None:
    rollout, client = agent
    fake.fault = Fault("status", 1, (400, "no"))
    with pytest.raises(openai.BadRequestError):
        create(client)
    span = ready.span(rollout)
    with pytest.raises(openai.BadRequestError, match="Previous response"):
        create(client, previous_response_id="resp_" + span.id.removeprefix("spn_"))


def test_a_lost_database(ready: Served, client: openai.OpenAI, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = create(client)
    client.responses.retrieve(reply.id)  # so that the key is known

    def lost() -> Any:
        raise DatabaseUnreachable("gone")

    monkeypatch.setattr(ready.database, "read", lost)
    with pytest.raises(openai.InternalServerError) as caught:
        create(client, previous_response_id=reply.id)
    assert (caught.value.status_code, caught.value.code) == (503, "span_log")


@pytest.mark.parametrize("stream", [False, True])
def test_an_overlong_prompt(client: openai.OpenAI, fake: FakeEngine, stream: bool) -> None:
    fake.fault = Fault("status", 1, (400, "Input length (9) exceeds model's maximum context length (8)."))
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, stream=stream)
    assert caught.value.code == "context_length_exceeded"


def test_a_stream_that_breaks_off(client: openai.OpenAI, fake: FakeEngine) -> None:
    fake.fault = Fault("reset_after", 1, 3)
    with create(client, stream=True) as stream:
        seen = list(stream)
    assert seen[-1].type == "response.failed"
    assert seen[-1].response.error.code == "engine_broke_off"


def test_errors_before_an_engine_is_asked(ready: Served, client: openai.OpenAI, fake: FakeEngine) -> None:
    with openai.OpenAI(base_url=ready.url + "/v1", api_key="wrong", max_retries=0) as stranger:
        with pytest.raises(openai.AuthenticationError):
            create(stranger)
        with pytest.raises(openai.AuthenticationError):
            stranger.responses.retrieve("resp_x")
    with pytest.raises(openai.BadRequestError) as caught:
        create(client, tool_choice={"type": "web_search"}, tools=TOOLS)
    assert (caught.value.code, caught.value.param) == ("unsupported_tool", "tool_choice")
    headers = {"x-api-key": client.api_key}
    response = httpx.post(ready.url + "/v1/responses", content=b"{", headers=headers, trust_env=False)
    assert response.status_code == 400 and response.json()["error"]["type"] == "invalid_request_error"
    assert not fake.requests
