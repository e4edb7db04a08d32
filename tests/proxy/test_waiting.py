"""Slow and silent engines: which time-out ends which wait, what a caller hears meanwhile, and the queue over HTTP."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import product
from typing import Any

import httpx
import openai
import pytest
from sqlalchemy import update

from proxy.outlet import Outlet
from proxy.patience import Patience
from proxy.settings import Settings
from spanlog.models import Engine
from spanlog.states import SpanStatus
from tests.proxy.conftest import Served, chat_body, serve, wait_for
from tests.proxy.fake_engine import FakeEngine, Fault
from tests.proxy.requests_by_dialect import ROUTES
from tests.proxy.test_engine_rules import view
from tests.proxy.test_pool import in_loop

COMMENT = ": keep-alive\n\n"


@contextmanager
def patient(
    url: str, fake: FakeEngine, fault: Fault | None = None, token_delay_s: float = 0.0, **fields: Any
) -> Iterator[Served]:
    with serve(url, **{"upstream_tries": 1, "engine_poll_s": 0.05, **fields}) as proxy:
        proxy.policy()
        proxy.engine(fake)
        fake.requests.clear()
        fake.fault, fake.token_delay_s = fault, token_delay_s  # not for the probes
        yield proxy


@contextmanager
def hold(fake: FakeEngine) -> Iterator[Callable[[], None]]:
    """Calls do not end before this is called, or the block is left."""
    released = threading.Event()

    async def held() -> None:
        await asyncio.to_thread(released.wait, 30)

    fake.before_finish = held
    try:
        yield released.set
    finally:
        released.set()


@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_says_nothing_at_all(sqlite_url: str, fake: FakeEngine, stream: bool) -> None:
    fault = Fault("silent")
    with patient(sqlite_url, fake, fault, upstream_first_s=0.3) as proxy:
        rollout, key = proxy.rollout()
        response = proxy.chat(key, stream=stream)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "engine_timeout")
        span = proxy.span(rollout)
        assert (span.status, span.http_status) == (SpanStatus.UPSTREAM_ERROR, 504)
        wait_for(lambda: fake.running == 0, timeout_s=2)


def test_headers_and_then_nothing(sqlite_url: str, fake: FakeEngine) -> None:
    """vLLM sends a stream's headers before it has a token: they do not end the wait for the first one."""
    fault = Fault("silent_after", argument=(0, 60))
    with patient(sqlite_url, fake, fault, upstream_first_s=0.3, upstream_idle_s=60) as proxy:
        _, key = proxy.rollout()
        response = proxy.chat(key, stream=True)
        assert (response.status_code, response.json()["error"]["code"]) == (504, "engine_timeout")


def test_a_stream_that_falls_silent(sqlite_url: str, fake: FakeEngine) -> None:
    fault = Fault("silent_after", argument=(2, 60))
    with patient(sqlite_url, fake, fault, upstream_first_s=60, upstream_idle_s=0.3) as proxy:
        rollout, key = proxy.rollout()
        response = proxy.chat(key, stream=True)
        assert response.status_code == 200 and '"engine_timeout"' in response.text
        assert "[DONE]" not in response.text and '"finish_reason":"stop"' not in response.text
        span = proxy.span(rollout)
        assert span.status == SpanStatus.UPSTREAM_ERROR
        assert span.completion_tokens is not None and len(span.completion_tokens) == 1


def test_a_silence_after_the_finish_reason_is_forgiven(sqlite_url: str, fake: FakeEngine) -> None:
    fault = Fault("silent_after", argument=(5, 60))
    with patient(sqlite_url, fake, fault, upstream_idle_s=0.3) as proxy:
        _, key = proxy.rollout()
        assert proxy.chat(key, stream=True).text.endswith("data: [DONE]\n\n")


def test_a_slow_engine_is_no_silent_one(sqlite_url: str, fake: FakeEngine) -> None:
    """The idle time counts from the last token, not from the beginning."""
    with patient(sqlite_url, fake, token_delay_s=0.2, upstream_first_s=0.5, upstream_idle_s=0.5) as proxy:
        rollout, key = proxy.rollout()
        assert proxy.chat(key, stream=True).text.endswith("data: [DONE]\n\n")
        assert proxy.span(rollout).trainable


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("paused_at", [0, 2])
def test_a_pause_for_a_weight_swap_is_no_silence(
    sqlite_url: str, fake: FakeEngine, stream: bool, paused_at: int
) -> None:
    """A minute's pause, scaled down: the engine keeps its requests, and the call goes on where it was."""
    fault = Fault("silent_after", argument=(paused_at, 1.2)) if stream else Fault("silent", argument=1.2)
    with patient(sqlite_url, fake, fault, upstream_first_s=0.4, upstream_idle_s=0.4) as proxy:
        rollout, key = proxy.rollout()

        def swap() -> None:
            wait_for(lambda: fake.running == 1)
            with proxy.database.begin() as conn:
                conn.execute(update(Engine).values(state="swapping"))
            time.sleep(1.0)
            with proxy.database.begin() as conn:
                conn.execute(update(Engine).values(state="ready"))

        trainer = threading.Thread(target=swap)
        trainer.start()
        response = proxy.chat(key, stream=stream)
        trainer.join()
        assert response.status_code == 200
        assert proxy.span(rollout).status == SpanStatus.OK


def test_a_connection_that_does_not_open(sqlite_url: str, fake: FakeEngine) -> None:
    """A host that drops packets: here, a listener whose backlog is full."""
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for taken in (first, second):
            taken.setblocking(False)
            taken.connect_ex(full.getsockname())
        time.sleep(0.1)
        settings = {"upstream_connect_s": 0.3, "upstream_first_s": 60, "engine_poll_s": 60}
        with serve(sqlite_url, upstream_tries=1, **settings) as proxy:
            proxy.policy(kind="frozen")
            proxy.engine(fake, kind="openai")
            port = full.getsockname()[1]
            proxy.app.control.state.services.pool.engines["eng"].base_url = f"http://127.0.0.1:{port}"
            _, key = proxy.rollout(purpose="eval")
            began = time.monotonic()
            response = proxy.chat(key)
            assert (response.status_code, response.json()["error"]["code"]) == (502, "engine_unreachable")
            assert time.monotonic() - began < 10


def test_a_long_silence_is_filled_with_comments(sqlite_url: str, fake: FakeEngine) -> None:
    """Before the first token and between two: a client's parser skips them."""
    with patient(sqlite_url, fake, token_delay_s=0.5, keep_alive_s=0.15) as proxy:
        rollout, key = proxy.rollout()
        text = proxy.chat(key, stream=True).text
        assert text.count(COMMENT) >= 3 and text.endswith("data: [DONE]\n\n")
        assert proxy.span(rollout).trainable
        fake.fault = Fault("silent", argument=0.5)
        fake.token_delay_s = 0.0
        with openai.OpenAI(base_url=proxy.url + "/v1", api_key=key, max_retries=0) as client:
            with client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True
            ) as chunks:
                text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == "Hello wörld"


def test_comments_come_before_the_first_token_in_each_dialect(sqlite_url: str, fake: FakeEngine) -> None:
    fault = Fault("silent", argument=0.5)
    with patient(sqlite_url, fake, fault, keep_alive_s=0.15) as proxy:
        _, key = proxy.rollout()
        for name, route in ROUTES.items():
            path, body = route.url(True), route.request(True)
            response = proxy.http.post(path, json=body, headers={"x-api-key": key})
            assert response.status_code == 200 and response.text.startswith(COMMENT), name
            assert "Hel" in response.text, name
        array = ROUTES["gemini"].url(True).partition("?")[0]  # one JSON document: white space in front
        body = ROUTES["gemini"].body
        response = proxy.http.post(array, json=body, headers={"x-api-key": key})
        assert response.text.startswith("\n") and isinstance(response.json(), list)


def test_an_error_before_the_silence_keeps_its_status_and_one_after_it_comes_in_the_stream(
    sqlite_url: str, fake: FakeEngine
) -> None:
    with patient(sqlite_url, fake, keep_alive_s=0.3, upstream_first_s=0.8) as proxy:
        _, key = proxy.rollout()
        fake.fault = Fault("status", argument=(400, "too long"))
        assert proxy.chat(key, stream=True).status_code == 400
        fake.fault = Fault("silent")
        response = proxy.chat(key, stream=True)
        assert response.status_code == 200 and response.text.startswith(COMMENT)
        last = [line for line in response.text.split("\n\n") if line][-1]
        assert json.loads(last[6:])["error"]["code"] == "engine_timeout"
        assert proxy.chat(key).status_code == 504, "a reply that is not streamed has no comments"


def test_a_comment_is_no_byte_of_the_reply(sqlite_url: str, fake: FakeEngine) -> None:
    """A try that failed after comments alone is made again: nobody could tell."""
    fault = Fault("silent", times=1)
    with patient(sqlite_url, fake, fault, keep_alive_s=0.1, upstream_first_s=0.5, upstream_tries=2) as proxy:
        rollout, key = proxy.rollout()
        response = proxy.chat(key, stream=True)
        assert response.text.startswith(COMMENT) and response.text.endswith("data: [DONE]\n\n")
        assert len(fake.requests) == 2
        assert proxy.span(rollout).trainable


def test_beyond_the_queue_callers_are_sent_away_in_their_dialect(sqlite_url: str, fake: FakeEngine) -> None:
    with patient(sqlite_url, fake, engine_calls=1, queue_calls=1) as proxy, hold(fake) as release:
        pool = proxy.app.control.state.services.pool
        rollout, key = proxy.rollout()
        with ThreadPoolExecutor(2) as callers:
            first = callers.submit(proxy.chat, key)
            wait_for(lambda: fake.running == 1)
            second = callers.submit(proxy.chat, key)
            wait_for(lambda: pool.waiting() == {"pol": 1})
            assert 'singletree_calls_waiting{policy="pol"} 1.0' in proxy.http.get("/metrics").text
            for route, stream in product(ROUTES.values(), (False, True)):
                path, body = route.url(stream), route.request(stream)
                refused = proxy.http.post(path, json=body, headers={"x-api-key": key})
                assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
                assert "busy" in json.dumps(refused.json()["error"])
            release()
            assert [first.result().status_code, second.result().status_code] == [200, 200]
        assert len(proxy.spans(rollout)) == 2, "nothing is recorded of what no engine was asked"
        assert len(fake.requests) == 2


def test_a_wait_that_is_too_long_is_429(sqlite_url: str, fake: FakeEngine) -> None:
    with patient(sqlite_url, fake, token_delay_s=0.5, engine_calls=1, queue_wait_s=0.2) as proxy:
        rollout, key = proxy.rollout()
        with ThreadPoolExecutor(1) as callers:
            first = callers.submit(proxy.chat, key)
            wait_for(lambda: fake.running == 1)
            response = proxy.chat(key, stream=True)
            assert (response.status_code, response.json()["error"]["code"]) == (429, "engines_busy")
            assert first.result().status_code == 200
        assert len(proxy.spans(rollout)) == 1


def test_a_caller_that_leaves_the_queue_frees_its_place(sqlite_url: str, fake: FakeEngine) -> None:
    with patient(sqlite_url, fake, token_delay_s=0.4, engine_calls=1, queue_calls=1) as proxy:
        pool = proxy.app.control.state.services.pool
        _, key = proxy.rollout()
        with ThreadPoolExecutor(1) as callers:
            first = callers.submit(proxy.chat, key)
            wait_for(lambda: fake.running == 1)
            with pytest.raises(httpx.ReadTimeout):
                httpx.post(
                    proxy.url + "/v1/chat/completions",
                    json=chat_body(),
                    headers={"x-api-key": key},
                    timeout=httpx.Timeout(5, read=0.2),
                    trust_env=False,
                )
            wait_for(lambda: pool.waiting() == {}, timeout_s=2)
            assert proxy.chat(key).status_code == 200, "the place is free again"
            assert first.result().status_code == 200
        assert len(fake.requests) == 2, "who left was never sent to an engine"


def test_a_draining_engine_finishes_its_calls_and_takes_no_new_ones(
    sqlite_url: str, fake: FakeEngine
) -> None:
    other = FakeEngine().start()
    try:
        with patient(sqlite_url, fake, token_delay_s=0.2) as proxy:
            rollout, key = proxy.rollout()
            with ThreadPoolExecutor(1) as callers:
                running = callers.submit(proxy.chat, key, stream=True)
                wait_for(lambda: fake.running == 1)
                proxy.engine(other, engine_id="other")
                proxy.ok("POST", "/api/engines/eng/drain")
                other.requests.clear()
                for _ in range(3):
                    assert proxy.chat(key).status_code == 200
                assert running.result().text.endswith("data: [DONE]\n\n")
            assert (len(fake.requests), len(other.requests)) == (1, 3)
            assert {span.engine_id for span in proxy.spans(rollout)} == {"eng", "other"}
    finally:
        other.stop()


@in_loop
async def test_a_caller_that_reads_slowly_is_no_silence_of_the_engine() -> None:
    """Its socket is full for longer than an engine may be silent."""
    taken = asyncio.Event()

    async def send(_message: object) -> None:
        await taken.wait()

    out, settings = Outlet(send), Settings(upstream_first_s=0.1, upstream_idle_s=0.1)
    patience = Patience(view(), settings, out)
    asyncio.get_running_loop().call_later(0.5, taken.set)
    async with patience:
        await out.events(b"data: 1\n\n")
    with pytest.raises(TimeoutError):
        async with patience:
            await asyncio.sleep(5)


@in_loop
async def test_a_comment_never_comes_between_headers_and_events() -> None:
    """It is on its way as the first event comes: that one waits."""
    sent: list[object] = []
    slow = asyncio.Event()

    async def send(message: Any) -> None:
        await slow.wait()
        await asyncio.sleep(0)
        sent.append(message.get("status") or message["body"])

    out = Outlet(send)
    out.keep_alive()
    events = asyncio.create_task(out.events(b"data: 1\n\n", last=True))
    await asyncio.sleep(0.01)
    out.keep_alive()
    slow.set()
    await events
    assert sent == [200, COMMENT.encode(), b"data: 1\n\n"]
