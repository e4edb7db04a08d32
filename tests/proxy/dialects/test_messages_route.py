"""The Messages route as its official client sees it, over the fake engine: replies, streams, faults, counts, probes."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from typing import Any

import anthropic
import orjson
import pytest

from spanlog.records import SpanRecord
from tests.proxy.conftest import Served
from tests.proxy.fake_engine import PROMPT_IDS, TOKENS, FakeEngine, Fault
from tests.proxy.test_commit_first import plain_connection

TEXT = "".join(text for _, text, _ in TOKENS)
ASK: dict[str, Any] = {"model": "m", "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
TOOL: dict[str, Any] = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}


class Acting(FakeEngine):
    """Thinks, speaks, and calls two tools; a token for each piece."""

    PIECES: tuple[dict[str, Any], ...] = (
        {"reasoning": "hm, "},
        {"reasoning": "so"},
        {"content": "I look."},
        {"tool_calls": [{"index": 0, "id": "call_a", "type": "function", "function": {"name": "look"}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '{"at": '}}]},
        {"tool_calls": [{"index": 0, "function": {"arguments": '"Rom"}'}}]},
        {
            "tool_calls": [
                {
                    "index": 1,
                    "id": "call_b",
                    "type": "function",
                    "function": {"name": "look", "arguments": "{}"},
                }
            ]
        },
    )

    def usage(self, body: dict[str, Any], fault: Fault) -> dict[str, float]:
        return {**super().usage(body, fault), "completion_tokens": len(self.PIECES)}

    def entry(self) -> dict[str, Any]:
        return {"token": "x", "logprob": -0.5, "bytes": None, "top_logprobs": []}

    def reply(self, body: dict[str, Any], fault: Fault) -> dict[str, Any]:
        reply = super().reply(body, fault)
        if "top_logprobs" in body:
            return reply
        choice = reply["choices"][0]
        choice["message"] = {
            "role": "assistant",
            "content": "I look.",
            "reasoning": "hm, so",
            "tool_calls": [
                {
                    "id": "call_a",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"at": "Rom"}'},
                },
                {"id": "call_b", "type": "function", "function": {"name": "look", "arguments": "{}"}},
            ],
        }
        choice |= {"finish_reason": "tool_calls", "token_ids": list(range(len(self.PIECES)))}
        choice["logprobs"] = {"content": [self.entry() for _ in self.PIECES]}
        return reply

    def chunks(self, body: dict[str, Any], fault: Fault) -> list[dict[str, Any]]:
        first, *_, last = super().chunks(body, fault)
        found = [first]
        for token, delta in enumerate(self.PIECES):
            choice = {"index": 0, "delta": delta, "token_ids": [token], "finish_reason": None}
            choice["logprobs"] = {"content": [self.entry()]}
            found.append({**first, "choices": [choice]})
        found[-1]["choices"][0]["finish_reason"] = "tool_calls"
        return [*found, last]


@pytest.fixture
def acting(proxy: Served) -> Iterator[Served]:
    engine = Acting().start()
    try:
        proxy.policy()
        proxy.engine(engine)
        yield proxy
    finally:
        engine.stop()


def client(served: Served, key: str, base: str = "", **options: Any) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=served.url + base, api_key=key, max_retries=0, **options)


def check(span: SpanRecord) -> None:
    assert (span.dialect, span.status, span.trainable) == ("messages", "ok", True), span.untrainable_reason


# Replies


def test_a_reply(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    with client(ready, key) as agent:
        message = agent.messages.create(**ASK, system="be kind", metadata={"user_id": "u"})
    span = ready.span(rollout)
    check(span)
    assert message.id == "msg_" + span.id.removeprefix("spn_")
    assert [block.to_dict() for block in message.content] == [{"type": "text", "text": TEXT}]
    assert (message.model, message.stop_reason) == ("m", "end_turn")
    assert (message.usage.input_tokens, message.usage.output_tokens) == (len(PROMPT_IDS), len(TOKENS))
    assert span.stripped is not None and "metadata" in span.stripped
    assert fake.requests[-1]["messages"][0] == {"role": "system", "content": "be kind"}
    assert "metadata" not in fake.requests[-1]


def test_a_stream(ready: Served) -> None:
    rollout, key = ready.rollout()
    with client(ready, key) as agent:
        with agent.messages.stream(**ASK) as stream:
            texts = list(stream.text_stream)
            message = stream.get_final_message()
    check(ready.span(rollout))
    assert texts == [text for _, text, _ in TOKENS if text]
    assert (message.stop_reason, message.usage.output_tokens) == ("end_turn", len(TOKENS))
    assert message.usage.input_tokens == len(PROMPT_IDS)


@pytest.mark.parametrize("thinking", [False, True])
def test_tools_and_thinking_streamed_and_not(acting: Served, thinking: bool) -> None:
    rollout, key = acting.rollout()
    options: dict[str, Any] = {**ASK, "tools": [TOOL]}
    if thinking:
        options |= {"thinking": {"type": "adaptive"}}
    with client(acting, key) as agent:
        whole = agent.messages.create(**options).to_dict()
        with agent.messages.stream(**options) as stream:
            streamed = stream.get_final_message().to_dict()
    spans = acting.spans(rollout)
    for message, span in zip((whole, streamed), spans, strict=True):
        check(span)
        content: Any = message["content"]
        kinds = [block["type"] for block in content]
        assert kinds == ["thinking"] * thinking + ["text", "tool_use", "tool_use"]
        if thinking:
            assert (content[0]["thinking"], content[0]["signature"]) == ("hm, so", span.id)
        assert [block["input"] for block in content[-2:]] == [{"at": "Rom"}, {}]
        assert [block["id"] for block in content[-2:]] == ["call_a", "call_b"]
        assert message["stop_reason"] == "tool_use"


def test_beta_and_its_query(ready: Served) -> None:
    _, key = ready.rollout()
    with client(ready, key) as agent:
        assert agent.beta.messages.create(**ASK, betas=["effort-2025-11-24"]).stop_reason == "end_turn"


@pytest.mark.parametrize("base", ["", "/v1", "/r/{key}", "/r/{key}/v1"])
@pytest.mark.parametrize("token", [False, True])
def test_keys_and_base_urls(ready: Served, base: str, token: bool) -> None:
    _, key = ready.rollout()
    options = {"auth_token": key} if token else {"api_key": key}
    with anthropic.Anthropic(base_url=ready.url + base.format(key=key), max_retries=0, **options) as agent:
        assert agent.messages.create(**ASK).stop_reason == "end_turn"
        assert agent.messages.count_tokens(model="m", messages=ASK["messages"]).input_tokens == len(
            PROMPT_IDS
        )


def test_a_base_url_without_a_version_for_clients_that_add_none(ready: Served) -> None:
    _, key = ready.rollout()
    assert ready.http.post("/messages", json=ASK, headers={"x-api-key": key}).status_code == 200
    assert ready.http.post(f"/r/{key}/messages", json=ASK).status_code == 200


def test_the_end_of_a_stream_waits_for_the_commit(acting: Served) -> None:
    rollout, key = acting.rollout()
    headers = {"x-api-key": key}
    assert acting.http.post("/v1/messages", json=ASK, headers=headers).status_code == 200
    seen = []
    with plain_connection(acting) as lock:
        lock.execute("BEGIN IMMEDIATE")
        released = threading.Event()

        def release() -> None:
            released.set()
            lock.execute("ROLLBACK")

        timer = threading.Timer(0.6, release)
        timer.start()
        body = {**ASK, "stream": True, "tools": [TOOL]}
        with acting.http.stream("POST", "/v1/messages", json=body, headers=headers) as response:
            for line in response.iter_lines():
                if '"{\\"at\\": "' in line:
                    assert not released.is_set(), "the start of a call's arguments is not held back"
                    seen.append("start")
                if '"\\"Rom\\"}"' in line or "message_delta" in line or "event: message_stop" in line:
                    assert released.is_set(), "what completes a call is"
                    assert len(acting.spans(rollout)) == 2
                    seen.append("end")
        timer.join()
    assert seen == ["start", "end", "end", "end", "end"]


# Faults


@pytest.mark.parametrize(
    ("status", "kind", "exception"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (503, "overloaded_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.InternalServerError),
    ],
)
def test_faults_of_the_engine(
    ready: Served, fake: FakeEngine, status: int, kind: str, exception: type[anthropic.APIStatusError]
) -> None:
    _, key = ready.rollout()
    fake.fault = Fault("status", argument=(status, "why"))
    with client(ready, key) as agent:
        for stream in (False, True):
            with pytest.raises(exception) as found:
                agent.messages.create(**ASK, stream=stream)
            assert found.value.status_code == status
            assert found.value.body == {"type": "error", "error": {"type": kind, "message": "why"}}
            assert found.value.response.headers["retry-after"] == "7"


def test_an_overlong_prompt(ready: Served, fake: FakeEngine) -> None:
    _, key = ready.rollout()
    fake.fault = Fault(
        "status", argument=(400, "Input length (600) exceeds model's maximum context length (512).")
    )
    with client(ready, key) as agent, pytest.raises(anthropic.BadRequestError) as found:
        agent.messages.create(**ASK, stream=True)
    assert "prompt is too long: 600 tokens > 512 maximum" in str(found.value)


def test_keys_and_routes_that_are_unknown(ready: Served) -> None:
    rollout, key = ready.rollout()
    with client(ready, "no-such-key") as agent:
        with pytest.raises(anthropic.AuthenticationError) as unknown:
            agent.messages.create(**ASK)
        with pytest.raises(anthropic.AuthenticationError):
            agent.models.list()
        with pytest.raises(anthropic.AuthenticationError):
            agent.messages.count_tokens(model="m", messages=ASK["messages"])
    assert unknown.value.body["error"]["type"] == "authentication_error"  # type: ignore[index]
    with client(ready, key) as agent, pytest.raises(anthropic.NotFoundError) as missing:
        agent.messages.batches.list()
    assert missing.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
    assert ready.spans(rollout) == []


@pytest.mark.parametrize(
    ("content", "status", "kind"),
    [
        (b"{", 400, "invalid_request_error"),
        (b"[1]", 400, "invalid_request_error"),
        (b'{"model": "\xff"}', 400, "invalid_request_error"),
        (b'{"a":' * 5000, 400, "invalid_request_error"),
        (orjson.dumps({**ASK, "messages": []}), 400, "invalid_request_error"),
        (orjson.dumps({**ASK, "max_tokens": -1}), 400, "invalid_request_error"),
        (b"x" * 50_000_000, 413, "request_too_large"),
    ],
)
def test_bad_bodies(ready: Served, fake: FakeEngine, content: bytes, status: int, kind: str) -> None:
    rollout, key = ready.rollout()
    for path in ("/v1/messages", "/v1/messages/count_tokens"):
        if b"max_tokens" in content and path.endswith("count_tokens") and b"-1" not in content:
            continue  # only the limit is wrong, and a count has none
        response = ready.http.post(path, content=content, headers={"x-api-key": key})
        assert response.status_code == status
        assert (response.json()["type"], response.json()["error"]["type"]) == ("error", kind)
    assert ready.spans(rollout) == [] and fake.requests == []


def test_a_stream_that_breaks_off_ends_with_an_error(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    fake.fault = Fault("reset_after", argument=2)
    with client(ready, key) as agent:
        with pytest.raises(anthropic.APIStatusError) as found:
            list(agent.messages.create(**ASK, stream=True))
    assert found.value.body["error"]["type"] == "api_error"  # type: ignore[index]
    assert ready.span(rollout).status == "upstream_error"


def test_a_second_attempt_begins_the_message_once(ready: Served, fake: FakeEngine) -> None:
    """The first attempt breaks off before anything was sent, though its first chunk was read."""
    rollout, key = ready.rollout()
    first = fake.chunks({}, Fault("none"))[0]
    error = {"error": {"message": "lost", "type": "x", "code": 500}}
    raw = b"".join(b"data: " + orjson.dumps(document) + b"\n\n" for document in (first, error))
    fake.fault = Fault("raw", times=1, argument=[raw])
    response = ready.http.post("/v1/messages", json={**ASK, "stream": True}, headers={"x-api-key": key})
    assert len(fake.requests) == 2
    assert response.text.count("event: message_start") == 1
    assert response.text.count("event: message_stop") == 1
    check(ready.span(rollout))


def test_a_failed_commit_is_told_in_the_stream(ready: Served) -> None:
    _, key = ready.rollout()
    with plain_connection(ready) as broken:
        broken.execute("ALTER TABLE spans RENAME TO spans_away")
        try:
            with client(ready, key) as agent, pytest.raises(anthropic.APIStatusError) as found:
                list(agent.messages.create(**ASK, stream=True))
        finally:
            broken.execute("ALTER TABLE spans_away RENAME TO spans")
    assert found.value.body["error"]["type"] == "overloaded_error"  # type: ignore[index]


# Counts, models, probes


def test_tokens_are_counted_by_the_engine(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    with client(ready, key) as agent:
        count = agent.messages.count_tokens(model="m", messages=ASK["messages"], system="s", tools=[TOOL])
        assert count.input_tokens == len(PROMPT_IDS)
        fake.closed_routes.add("/v1/chat/completions/render")
        with pytest.raises(anthropic.PermissionDeniedError):
            agent.messages.count_tokens(model="m", messages=ASK["messages"])
    assert ready.spans(rollout) == []


def test_only_vllm_counts(proxy: Served, fake: FakeEngine) -> None:
    proxy.policy(kind="frozen")
    proxy.engine(fake, kind="openai")
    _, key = proxy.rollout()
    with client(proxy, key) as agent, pytest.raises(anthropic.InternalServerError) as found:
        agent.messages.count_tokens(model="m", messages=ASK["messages"])
    assert found.value.status_code == 501


def test_models(ready: Served) -> None:
    _, key = ready.rollout()
    with client(ready, key) as agent:
        (model,) = agent.models.list()
        assert (model.id, model.display_name, model.max_input_tokens) == ("pol", "pol", 512)
        assert agent.models.retrieve("claude-x").id == "claude-x"
    listed = ready.http.get("/v1/models", headers={"x-api-key": key}).json()
    assert listed["object"] == "list", "without anthropic-version it is OpenAI's shape"


@pytest.mark.parametrize(
    "path", ["/", "/api/hello", "/v1/messages", "/r/x", "/r/x/api/hello", "/v1", "/nothing/here"]
)
def test_probes_are_answered_without_a_key(ready: Served, path: str) -> None:
    response = ready.http.head(path)
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.parametrize("path", ["/health", "/api/policies", "/metrics", "/api/rollouts/x"])
def test_the_control_plane_is_not_probed(ready: Served, path: str) -> None:
    """A balancer that asked for the head would be told that all is well, whatever is."""
    assert ready.http.head(path).status_code == 405


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages", "/r/x/v1/responses"])
def test_websockets_are_refused_at_once(ready: Served, path: str) -> None:
    host, port = ready.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(
            f"GET {path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        raw = b""
        while piece := connection.recv(65536):
            raw += piece
    head, _, body = raw.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 426 ")
    assert "POST" in orjson.loads(body)["error"]["message"]
