"""Callers that leave, by the thousand, at every moment of a call: nothing of them stays behind."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
from typing import Any

import psutil
import pytest

from spanlog.records import read_spans
from tests.proxy.conftest import Served, chat_body, wait_for
from tests.proxy.fake_engine import FakeEngine

AT_ONCE = 32
MOMENTS = ("sending", "before", "middle", "whole")
MOST_GROWTH = 100 << 20
"""Bytes of resident memory: what a few thousand calls that stayed would exceed, and caches do not."""


async def _abandon(port: int, key: str, moment: str, dice: random.Random) -> None:
    """One call that its caller leaves, by a clean close or by a reset."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields: dict[str, Any] = {"stream": moment != "whole"}
    if moment != "middle":
        fields["fake_delay_s"] = 60
    body = json.dumps(chat_body(**fields)).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nx-api-key: {key}\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + (body[:20] if moment == "sending" else body))
    await writer.drain()
    if moment == "middle":
        await reader.readuntil(b"data: ")
    else:
        await asyncio.sleep(dice.uniform(0.0, 0.05))
    if dice.random() < 0.5:
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


async def _abandon_many(port: int, key: str, count: int) -> None:
    dice, turns = random.Random(0), iter(range(count))

    async def caller() -> None:
        for turn in turns:
            await _abandon(port, key, MOMENTS[turn % len(MOMENTS)], dice)

    await asyncio.gather(*(caller() for _ in range(AT_ONCE)))


def _tasks(proxy: Served) -> int:
    loop = proxy.app.control.state.services.loop

    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    return asyncio.run_coroutine_threadsafe(count(), loop).result(10)


def _established() -> int:
    return sum(one.status == psutil.CONN_ESTABLISHED for one in psutil.Process().net_connections("tcp"))


def _abandon_and_look(ready: Served, fake: FakeEngine, count: int) -> None:
    fake.token_delay_s = 0.5
    rollout, key = ready.rollout()
    port = int(ready.url.rpartition(":")[2])
    asyncio.run(_abandon_many(port, key, 2 * AT_ONCE))  # pools and caches fill
    pool, metrics = ready.app.control.state.services.pool, ready.app.control.state.services.metrics
    wait_for(lambda: fake.running == 0 and pool.engines["eng"].in_flight == 0, 30)
    tasks, sockets, memory = _tasks(ready), _established(), psutil.Process().memory_info().rss
    asyncio.run(_abandon_many(port, key, count))
    wait_for(lambda: fake.running == 0, 30)
    wait_for(lambda: pool.engines["eng"].in_flight == 0, 30)
    wait_for(lambda: _tasks(ready) <= tasks + 2, 30)  # two may be a health check just now
    wait_for(lambda: _established() <= sockets + 4, 30)
    assert pool.waiting() == {}
    assert metrics.in_flight._value.get() == 0
    assert psutil.Process().memory_info().rss - memory < MOST_GROWTH
    fake.token_delay_s = 0.0
    assert ready.chat(key, stream=True).text.endswith("data: [DONE]\n\n"), "and it works on"
    with ready.database.read() as conn:
        spans = read_spans(conn, [rollout])[rollout]
    ended = [span for span in spans if span.status == "ok"]
    assert len(ended) == 1 and all(span.status == "aborted" for span in spans if span not in ended)
    assert len(spans) > count / 2, "whoever sent its request whole is on record"


def test_a_thousand_callers_that_leave(ready: Served, fake: FakeEngine) -> None:
    _abandon_and_look(ready, fake, 1000)


@pytest.mark.slow
def test_ten_thousand_callers_that_leave(ready: Served, fake: FakeEngine) -> None:
    _abandon_and_look(ready, fake, 10_000)
