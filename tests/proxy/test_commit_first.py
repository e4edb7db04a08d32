"""I3: whoever has seen the end of a reply can rely on its span."""

from __future__ import annotations

import json
import random
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.proxy.conftest import Served, chat_body
from tests.proxy.fake_engine import FakeEngine, Fault


@contextmanager
def plain_connection(proxy: Served) -> Iterator[sqlite3.Connection]:
    connection = sqlite3.connect(
        str(proxy.database.url.database), isolation_level=None, check_same_thread=False
    )
    try:
        yield connection
    finally:
        connection.close()


def test_no_end_of_a_stream_before_the_commit(ready: Served) -> None:
    rollout, key = ready.rollout()
    assert ready.chat(key).status_code == 200  # the key is remembered now: reading needs no lock anyway
    with plain_connection(ready) as lock:
        lock.execute("BEGIN IMMEDIATE")
        released = threading.Event()

        def release() -> None:
            released.set()
            lock.execute("ROLLBACK")

        timer = threading.Timer(0.6, release)
        timer.start()
        seen = []
        with ready.http.stream(
            "POST", "/v1/chat/completions", json=chat_body(stream=True), headers={"x-api-key": key}
        ) as response:
            for line in response.iter_lines():
                if '"content":"wörld"' in line:
                    assert not released.is_set(), "content is not held back"
                    seen.append("content")
                if '"finish_reason":"stop"' in line or "[DONE]" in line:
                    assert released.is_set(), "the end is"
                    assert len(ready.spans(rollout)) == 2
                    seen.append("end")
        timer.join()
    assert seen == ["content", "end", "end"]


def test_no_whole_reply_before_the_commit(ready: Served) -> None:
    rollout, key = ready.rollout()
    with plain_connection(ready) as lock:
        lock.execute("BEGIN IMMEDIATE")
        released = threading.Event()

        def release() -> None:
            released.set()
            lock.execute("ROLLBACK")

        timer = threading.Timer(0.6, release)
        timer.start()
        with ready.http.stream(
            "POST", "/v1/chat/completions", json=chat_body(), headers={"x-api-key": key}
        ) as response:
            assert released.is_set()
            assert response.status_code == 200
            assert len(ready.spans(rollout)) == 1
            response.read()
        timer.join()


@pytest.mark.parametrize("stream", [False, True])
def test_a_failed_commit_is_told_and_leaves_nothing(ready: Served, fake: FakeEngine, stream: bool) -> None:
    rollout, key = ready.rollout()
    with plain_connection(ready) as broken:
        broken.execute("ALTER TABLE spans RENAME TO spans_away")
        try:
            response = ready.chat(key, stream=stream)
        finally:
            broken.execute("ALTER TABLE spans_away RENAME TO spans")
        blobs = broken.execute("SELECT count(*) FROM blobs").fetchone()[0]
    if stream:
        last = json.loads([line for line in response.text.split("\n\n") if line][-1][6:])
        assert last["error"]["code"] == "span_not_committed"
        assert '"stop"' not in response.text and "[DONE]" not in response.text
    else:
        assert (response.status_code, response.json()["error"]["code"]) == (503, "span_not_committed")
    assert ready.spans(rollout) == []
    assert blobs == 0, "nothing half-written"
    assert ready.chat(key, stream=stream).status_code == 200, "and the next call works"


def test_however_the_stream_is_cut_the_span_comes_first(ready: Served, fake: FakeEngine) -> None:
    rollout, key = ready.rollout()
    chunks = fake.chunks({"stream_options": {"include_usage": True}}, Fault("none"))
    raw = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks) + b"data: [DONE]\n\n"
    shuffle = random.Random(0)
    for number in range(1, 16):
        cuts = sorted(shuffle.sample(range(1, len(raw)), 12))
        pieces = [raw[start:end] for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True)]
        fake.fault = Fault("raw", argument=pieces)
        with ready.http.stream(
            "POST", "/v1/chat/completions", json=chat_body(stream=True), headers={"x-api-key": key}
        ) as response:
            for line in response.iter_lines():
                if '"finish_reason":"stop"' in line:
                    assert len(ready.spans(rollout)) == number
    assert all(span.trainable for span in ready.spans(rollout))
