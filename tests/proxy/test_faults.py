"""Engines that fail, in every way seen, and callers that leave. Nothing invalid becomes trainable, nothing is hidden."""

from __future__ import annotations

import json
import random
import time

import httpx
import pytest

from proxy import contract
from proxy.dialects import chat
from spanlog.errors import DatabaseLocked
from spanlog.states import SpanStatus
from tests.proxy.conftest import Served, chat_body, serve, wait_for
from tests.proxy.fake_engine import FakeEngine, Fault


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("extra_logprob", "logprobs_count"),
        ("missing_ids", "token_ids_missing"),
        ("nan", "logprob_not_finite"),
        ("null", "logprob_not_finite"),
        ("masked", "logprob_sentinel"),
        ("positive", "logprob_positive"),
        ("nan_usage", "usage_count"),
        ("nan_extra_logprob", "logprobs_count"),
    ],
)
def test_odd_tokens_are_served_kept_and_untrainable(
    ready: Served, fake: FakeEngine, stream: bool, kind: str, reason: str
) -> None:
    fake.fault = Fault(kind)
    rollout, key = ready.rollout()
    assert ready.chat(key, stream=stream).status_code == 200
    span = ready.span(rollout)
    assert (span.status, span.trainable, span.untrainable_reason) == ("ok", False, reason)
    if kind != "missing_ids":
        assert span.completion_tokens is not None and len(span.completion_tokens) == 4, "nothing is trimmed"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kind", ["reset", "status", "abort"])
def test_a_passing_failure_is_retried_and_not_noticed(
    ready: Served, fake: FakeEngine, stream: bool, kind: str
) -> None:
    fake.fault = Fault(kind, times=2, argument=(503, "busy"))
    rollout, key = ready.rollout()
    # Of a stream that ends in "abort" the first chunks are out: that cannot be retried.
    expected = 1 if kind == "abort" and stream else 3
    response = ready.chat(key, stream=stream)
    assert response.status_code == 200
    assert len(fake.requests) == expected
    span = ready.span(rollout)
    assert span.status == (SpanStatus.OK if expected == 3 else SpanStatus.UPSTREAM_ERROR)
    assert span.trainable is (expected == 3)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("status", "tries"), [(400, 1), (404, 1), (429, 3), (500, 3)])
def test_errors_keep_status_and_message(
    ready: Served, fake: FakeEngine, stream: bool, status: int, tries: int
) -> None:
    fake.fault = Fault("status", argument=(status, "Input length (1480) exceeds the window"))
    rollout, key = ready.rollout()
    response = ready.chat(key, stream=stream)
    assert response.status_code == status
    assert response.json()["error"]["message"] == "Input length (1480) exceeds the window"
    assert response.headers["retry-after"] == "7"
    assert len(fake.requests) == tries
    span = ready.span(rollout)
    assert (span.http_status, span.trainable) == (status, False)
    assert span.status == (SpanStatus.REFUSED if status < 500 else SpanStatus.UPSTREAM_ERROR)


def test_what_the_engine_refuses_is_not_tried_again(ready: Served, fake: FakeEngine) -> None:
    _, key = ready.rollout()
    for status in (400, 401, 403, 404, 413, 422):
        for stream in (False, True):
            fake.requests.clear()
            fake.fault = Fault("status", argument=(status, "no"))
            assert ready.chat(key, stream=stream).status_code == status
            assert len(fake.requests) == 1


def test_what_may_pass_is_tried_again_after_a_pause_of_its_own(
    ready: Served, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jitter: callers that failed together do not come back together."""
    pauses: list[tuple[float, float]] = []
    monkeypatch.setattr(random, "uniform", lambda low, high: pauses.append((low, high)) or 0.01)
    _, key = ready.rollout()
    for status in (408, 429, 500, 502, 503, 504, 529):
        fake.requests.clear()
        pauses.clear()
        fake.fault = Fault("status", times=2, argument=(status, "busy"))
        assert ready.chat(key).status_code == 200
        assert len(fake.requests) == 3
        assert len(pauses) == 2 and all(0 < low < high for low, high in pauses)


def test_chunks_that_come_twice_are_kept_and_untrainable(ready: Served, fake: FakeEngine) -> None:
    chunks = fake.chunks({"stream_options": {"include_usage": True}}, Fault("none"))
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks]
    fake.fault = Fault("raw", argument=[*events[:2], events[1], *events[2:], b"data: [DONE]\n\n"])
    rollout, key = ready.rollout()
    assert ready.chat(key, stream=True).status_code == 200
    span = ready.span(rollout)
    assert (span.status, span.trainable, span.untrainable_reason) == (SpanStatus.OK, False, "usage_count")
    assert span.completion_tokens is not None and len(span.completion_tokens) == 5, "nothing is trimmed"


def test_an_engine_that_is_gone_gives_a_clear_error(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    fake.fault = Fault("reset")
    response = ready.chat(key)
    assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_unreachable")
    assert "'eng'" in response.json()["error"]["message"]
    assert fake.url.removeprefix("http://") not in response.text, "its address is nobody's business"
    assert ready.span(rollout).status == SpanStatus.UPSTREAM_ERROR


def test_a_break_before_the_first_byte_out_is_retried(ready: Served, fake: FakeEngine) -> None:
    fake.fault = Fault("reset_after", times=1, argument=0)
    rollout, key = ready.rollout()
    assert ready.chat(key, stream=True).text.endswith("data: [DONE]\n\n")
    assert len(fake.requests) == 2
    assert ready.span(rollout).trainable


def test_a_break_after_the_finish_reason_is_forgiven(ready: Served, fake: FakeEngine) -> None:
    fake.fault = Fault("reset_after", argument=5)  # the chunk with the token counts
    rollout, key = ready.rollout()
    assert ready.chat(key, stream=True).text.endswith("data: [DONE]\n\n")
    span = ready.span(rollout)
    assert (span.status, span.untrainable_reason) == (SpanStatus.OK, "usage_missing")


def test_a_break_after_the_first_byte_is_an_error_in_the_stream(ready: Served, fake: FakeEngine) -> None:
    fake.fault = Fault("reset_after", argument=2)
    rollout, key = ready.rollout()
    response = ready.chat(key, stream=True)
    assert response.status_code == 200
    last = [line for line in response.text.split("\n\n") if line][-1]
    assert json.loads(last[6:])["error"]["code"] == "engine_broke_off"
    assert len(fake.requests) == 1
    span = ready.span(rollout)
    assert (span.status, span.trainable) == (SpanStatus.UPSTREAM_ERROR, False)
    assert span.completion_tokens is not None and len(span.completion_tokens) == 1, (
        "what was received is kept"
    )


def test_an_abort_by_the_engine_is_no_reply(ready: Served, fake: FakeEngine) -> None:
    fake.fault = Fault("abort")
    rollout, key = ready.rollout()
    response = ready.chat(key)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_aborted")
    assert ready.span(rollout).status == SpanStatus.UPSTREAM_ERROR
    streamed = ready.chat(key, stream=True).text
    assert '"abort"' not in streamed and "[DONE]" not in streamed
    assert "engine_aborted" in streamed


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
def test_streams_in_pieces(ready: Served, fake: FakeEngine, line_end: bytes) -> None:
    chunks = fake.chunks({"stream_options": {"include_usage": True}}, Fault("none"))
    raw = b": comment" + line_end * 2
    for chunk in chunks:
        raw += b"data:" + json.dumps(chunk, ensure_ascii=False).encode() + line_end * 2
    raw += b"data:[DONE]" + line_end * 2
    fake.fault = Fault("raw", argument=[raw[start : start + 37] for start in range(0, len(raw), 37)])
    rollout, key = ready.rollout()
    assert "wörld" in ready.chat(key, stream=True).text
    assert ready.span(rollout).trainable


def test_garbage_is_an_upstream_error(ready: Served, fake: FakeEngine) -> None:
    fake.fault = Fault("raw", argument=[b"data: {nonsense\n\n"])
    rollout, key = ready.rollout()
    response = ready.chat(key, stream=True)
    assert response.status_code == 502
    assert "not JSON" in response.json()["error"]["message"]
    assert ready.span(rollout).status == SpanStatus.UPSTREAM_ERROR


@pytest.mark.parametrize("stream", [False, True])
def test_a_caller_that_leaves_stops_the_engine(ready: Served, fake: FakeEngine, stream: bool) -> None:
    """Before the first byte (a slow engine), streaming or not."""
    fake.token_delay_s = 0.4
    rollout, key = ready.rollout()
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(
            ready.url + "/v1/chat/completions",
            json=chat_body(stream=stream),
            headers={"x-api-key": key},
            timeout=httpx.Timeout(5, read=0.2),
            trust_env=False,
        )
    wait_for(lambda: fake.cut_off == 1 and fake.running == 0, timeout_s=1)
    span = ready.span(rollout)
    assert (span.status, span.delivery, span.trainable, span.http_status) == (
        "aborted",
        "aborted",
        False,
        499,
    )


def test_a_caller_that_leaves_in_the_middle_of_a_stream(ready: Served, fake: FakeEngine) -> None:
    fake.token_delay_s = 0.15
    rollout, key = ready.rollout()
    with httpx.Client(trust_env=False) as client:
        with client.stream(
            "POST",
            ready.url + "/v1/chat/completions",
            json=chat_body(stream=True),
            headers={"x-api-key": key},
        ) as response:
            pieces = response.iter_raw()  # dropping it would close the connection
            next(pieces)
            next(pieces)
    wait_for(lambda: fake.cut_off == 1 and fake.running == 0, timeout_s=1)
    span = ready.span(rollout)
    assert (span.status, span.delivery) == ("aborted", "aborted")
    assert span.completion_tokens is not None and len(span.completion_tokens) == 1


def test_a_restarted_engine_takes_no_traffic(ready: Served, fake: FakeEngine) -> None:
    """It serves base weights and calls itself healthy; here the policy is at version 2 by then."""
    from sqlalchemy import update

    from spanlog.models import Engine, Policy

    with ready.database.begin() as conn:
        conn.execute(update(Policy).values(version=2))
        conn.execute(update(Engine).values(version=2))
    fake.label = "pol:2"
    wait_for(lambda: ready.ok("GET", "/api/engines/eng")["version"] == 2)
    rollout, key = ready.rollout()
    assert ready.chat(key).status_code == 200
    span = ready.span(rollout)
    assert span.version_low is not None and set(span.version_low.tolist()) == {2}

    fake.label = "default"
    engine = wait_for(lambda: (e := ready.ok("GET", "/api/engines/eng"))["state"] == "stale" and e)
    assert engine["version"] is None
    response = ready.chat(key)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "no_engine")

    fake.label = "pol:2"
    wait_for(lambda: ready.ok("GET", "/api/engines/eng")["state"] == "ready")
    assert ready.chat(key).status_code == 200


def test_the_label_is_checked_on_each_new_connection(sqlite_url: str, fake: FakeEngine) -> None:
    """Even between two health polls, which are far apart here."""
    with serve(sqlite_url, engine_poll_s=60.0, upstream_tries=1) as proxy:
        proxy.policy()
        proxy.engine(fake)
        fake.label = "somebody-elses:7"
        _, key = proxy.rollout()
        asked = len(fake.requests)
        response = proxy.chat(key)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_stale")
        assert len(fake.requests) == asked, "it was never asked"
        assert proxy.ok("GET", "/api/engines/eng")["state"] == "stale"


def test_a_silent_engine_is_marked_as_gone(ready: Served, fake: FakeEngine) -> None:
    fake.closed_routes = {"/health"}
    started = time.monotonic()
    wait_for(lambda: ready.ok("GET", "/api/engines/eng")["state"] == "gone")
    assert time.monotonic() - started < 5
    fake.closed_routes = set()
    wait_for(lambda: ready.ok("GET", "/api/engines/eng")["state"] == "ready")


@pytest.mark.parametrize(
    "event",
    [
        b'{"choices": ["x"]}',
        b'{"choices": [{"index": 0, "delta": 5}]}',
        b'{"choices": {"a": 1}}',
        b'{"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": 5}',
        b'{"choices": [{"delta": {"tool_calls": [{"index": 0}, {"index": null}]}, "finish_reason": "stop"}]}',
        b'{"choices": [{"delta": {"content": "a"}}]}\n\n'
        b'data: {"choices": [{"delta": {"content": 5}, "finish_reason": "stop"}]}',
        b"[1]",
        b"7",
    ],
)
def test_replies_of_another_shape_are_upstream_errors(ready: Served, fake: FakeEngine, event: bytes) -> None:
    fake.fault = Fault("raw", argument=[b"data: " + event + b"\n\n"])
    rollout, key = ready.rollout()
    response = ready.chat(key, stream=True)
    assert '"upstream_error"' in response.text and "[DONE]" not in response.text
    assert ready.span(rollout).status == SpanStatus.UPSTREAM_ERROR


@pytest.mark.parametrize("stream", [False, True])
def test_a_fault_of_the_proxy_itself_is_on_record(
    ready: Served, fake: FakeEngine, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(chat, "clean_reply", fails)
    monkeypatch.setattr(chat, "clean_chunk", fails)
    rollout, key = ready.rollout()
    response = ready.chat(key, stream=stream)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")
    assert "not foreseen" not in response.text
    span = ready.span(rollout)
    assert (span.status, span.http_status, span.trainable) == (SpanStatus.UPSTREAM_ERROR, 500, False)


def test_a_request_that_no_contract_foresaw_is_answered_in_shape(
    ready: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("not foreseen")

    monkeypatch.setattr(contract, "apply_training", fails)
    _, key = ready.rollout()
    response = ready.chat(key)
    assert (response.status_code, response.json()["error"]["code"]) == (500, "internal_error")


@pytest.mark.parametrize("error", [DatabaseLocked("away for a moment"), KeyError("x"), ValueError("x")])
def test_an_engine_that_cannot_be_checked_is_on_record(
    ready: Served, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    rollout, key = ready.rollout()
    client = ready.app.control.state.services.watch.client

    async def fails(_: object) -> None:
        raise error

    monkeypatch.setattr(client, "_verify", fails)
    response = ready.chat(key)
    assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_not_checked")
    assert ready.span(rollout).status == SpanStatus.UPSTREAM_ERROR


def test_a_retry_that_finds_no_engine_leaves_the_span_of_the_first_try(
    sqlite_url: str, fake: FakeEngine
) -> None:
    with serve(sqlite_url, engine_poll_s=60.0) as proxy:
        proxy.policy()
        proxy.engine(fake)

        async def take_away() -> None:
            proxy.app.control.state.services.pool.engines.clear()

        fake.before_finish = take_away
        fake.fault = Fault("abort")
        rollout, key = proxy.rollout()
        response = proxy.chat(key)
        assert (response.status_code, response.json()["error"]["code"]) == (503, "engine_aborted")
        span = proxy.span(rollout)
        assert (span.status, span.engine_id) == (SpanStatus.UPSTREAM_ERROR, "eng")


@pytest.mark.parametrize("error", [{"message": "out of memory", "code": 500}, "out of memory"])
def test_an_error_in_the_stream_reaches_the_caller_in_its_shape(
    ready: Served, fake: FakeEngine, error: object
) -> None:
    fake.fault = Fault("raw", argument=[b"data: " + json.dumps({"error": error}).encode() + b"\n\n"])
    _, key = ready.rollout()
    assert ready.chat(key, stream=True).json()["error"]["message"] == "out of memory"
