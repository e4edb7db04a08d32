"""The same faults on every route: errors in the caller's dialect, with the right status, and one span that tells why."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from proxy import exchange
from spanlog.states import SpanStatus
from tests.proxy.conftest import Served, Standing
from tests.proxy.fake_engine import FakeEngine, Fault
from tests.proxy.requests_by_dialect import ROUTES, Route

PARTS = b'{"id": "chatcmpl-1", "choices": [{"index": 0, "mess'

pytestmark = pytest.mark.parametrize("name", list(ROUTES))
either = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])


@pytest.fixture
def ready(standing: Standing, monkeypatch: pytest.MonkeyPatch) -> Served:
    monkeypatch.setattr(exchange, "RETRY_BASE_S", 0.01)
    return standing.calm().proxy


@pytest.fixture
def fake(standing: Standing) -> FakeEngine:
    return standing.fake


def call(proxy: Served, name: str, stream: bool) -> tuple[httpx.Response, str, Route]:
    rollout, key = proxy.rollout()
    route = ROUTES[name]
    response = proxy.http.post(route.url(stream), json=route.request(stream), headers={"x-api-key": key})
    return response, rollout, route


def error_of(response: httpx.Response) -> Any:
    error = response.json()["error"]
    assert isinstance(error, dict) and error["message"]
    return error


@either
@pytest.mark.parametrize(
    ("fault", "status", "tries"),
    [
        (Fault("status", argument=(400, "The prompt is too long")), 400, 1),
        (Fault("status", argument=(429, "Slow down")), 429, 3),
        (Fault("status", argument=(500, "Broken")), 500, 3),
        (Fault("reset"), 502, 3),
    ],
)
def test_before_the_first_byte_a_status(
    ready: Served, fake: FakeEngine, name: str, stream: bool, fault: Fault, status: int, tries: int
) -> None:
    fake.fault = Fault(fault.kind, argument=fault.argument)
    response, rollout, _ = call(ready, name, stream)
    assert response.status_code == status, response.text
    error = error_of(response)
    if fault.argument:
        assert fault.argument[1] in error["message"]
    assert len(fake.requests) == tries
    span = ready.span(rollout)
    assert (span.http_status, span.trainable) == (status, False)
    assert span.status == (SpanStatus.REFUSED if status < 500 else SpanStatus.UPSTREAM_ERROR)


@either
@pytest.mark.parametrize("content", [PARTS, b"", b"[]", b'{"choices": []}', b"<html>gateway</html>"])
def test_what_is_no_reply(ready: Served, fake: FakeEngine, name: str, stream: bool, content: bytes) -> None:
    body = b"data: " + content + b"\n\n"
    fake.fault = Fault("raw", argument=[body]) if stream else Fault("whole", argument=content)
    response, rollout, _ = call(ready, name, stream)
    if response.status_code == 200:
        assert stream and "error" in response.text, "events of the dialect's own may have gone out before"
    else:
        assert response.status_code == 502
        error_of(response)
    assert ready.span(rollout).status == SpanStatus.UPSTREAM_ERROR


@either
def test_an_abort_is_no_end(ready: Served, fake: FakeEngine, name: str, stream: bool) -> None:
    fake.fault = Fault("abort")
    response, rollout, _ = call(ready, name, stream)
    assert "abort" in response.text and "[DONE]" not in response.text and "message_stop" not in response.text
    assert response.status_code == (200 if stream else 503)
    if not stream:
        error_of(response)
    span = ready.span(rollout)
    assert (span.status, span.trainable) == (SpanStatus.UPSTREAM_ERROR, False)


@either
@pytest.mark.parametrize("kind", ["missing_ids", "extra_logprob", "nan", "masked", "null"])
def test_odd_tokens_are_served_and_never_trained_on(
    ready: Served, fake: FakeEngine, name: str, stream: bool, kind: str
) -> None:
    fake.fault = Fault(kind)
    response, rollout, _ = call(ready, name, stream)
    assert response.status_code == 200 and "error" not in json.dumps(response.text)[:20]
    span = ready.span(rollout)
    assert (span.status, span.trainable) == (SpanStatus.OK, False)
    assert span.untrainable_reason


def test_a_break_after_the_first_byte(ready: Served, fake: FakeEngine, name: str) -> None:
    fake.fault = Fault("reset_after", argument=3)
    response, rollout, _ = call(ready, name, True)
    assert response.status_code == 200 and "Hel" in response.text
    last = [line for line in response.text.split("\n") if line.startswith("data: ")][-1]
    assert "failed" in last and "error" in last, "the last event says so"
    assert len(fake.requests) == 1, "no second try once something is out"
    span = ready.span(rollout)
    assert (span.status, span.trainable) == (SpanStatus.UPSTREAM_ERROR, False)
    assert span.completion_tokens is not None and len(span.completion_tokens) >= 1
