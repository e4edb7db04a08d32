"""Calls made at a server that is measured, and what they cost and took.

What a server costs is its processes' CPU time, which a busy machine distorts least; what a caller waits for is wall
time, and holds only beside that of another server in the same run.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from dataclasses import dataclass, field

import aiohttp
import orjson

from benchmarks.servers import cpu_seconds
from benchmarks.upstream import MODEL, TEXT


@dataclass
class Server:
    """One that is measured. ``True`` as a key stands for streams, ``False`` for calls that are not streamed."""

    name: str
    pid: int
    url: str
    """Of its chat completions."""
    key: str
    no_streams: str | None = None
    """Why it has no streams; null if it has."""
    second_turn: bool = False
    """Its calls continue a recorded turn."""
    note: str = ""
    cpu_us: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    """Microseconds per call, one for each round."""
    calls_per_s: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    answered: int = 0

    def median_us(self, stream: bool) -> float | None:
        return statistics.median(self.cpu_us[stream]) if self.cpu_us[stream] else None


@dataclass(frozen=True)
class Waits:
    """Seconds that callers waited, one for each call."""

    first: list[float]
    """For the first bytes of the body."""
    whole: list[float]


def request_body(stream: bool, second_turn: bool = False) -> bytes:
    """A request of about 2 KB: a system message, a question and one tool; a second turn has the reply, too."""
    parameters = {
        "type": "object",
        "properties": {"item": {"type": "string", "description": "its name " * 20}},
    }
    tool = {
        "type": "function",
        "function": {"name": "look_up", "description": "Look. " * 40, "parameters": parameters},
    }
    messages = [
        {"role": "system", "content": "You are a careful clerk. " * 40},
        {"role": "user", "content": "What does it cost? " * 15},
    ]
    if second_turn:
        messages += [{"role": "assistant", "content": TEXT}, {"role": "user", "content": "And two of them?"}]
    return orjson.dumps(
        {"model": MODEL, "messages": messages, "tools": [tool], "max_tokens": 64, "stream": stream}
    )


async def load(server: Server, body: bytes, calls: int, connections: int) -> Waits:
    """Makes ``calls`` calls over the connections. Raises RuntimeError if one is not answered whole."""
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    left = iter(range(calls))
    stream = b'"stream":true' in body
    waits = Waits([], [])

    async def one_connection(session: aiohttp.ClientSession) -> None:
        for _ in left:
            began = time.perf_counter()
            async with session.post(server.url, data=body, headers=headers) as reply:
                answer = await reply.content.readany()
                waits.first.append(time.perf_counter() - began)
                answer += await reply.read()
                waits.whole.append(time.perf_counter() - began)
                whole = b"[DONE]" in answer[-20:] if stream else b'"finish_reason":"stop"' in answer
                if reply.status != 200 or not whole:
                    raise RuntimeError(f"{server.name} answered {reply.status}: {answer[:300]!r}")
                server.answered += 1

    connector = aiohttp.TCPConnector(limit=connections)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(one_connection(session) for _ in range(connections)))
    return waits


def measure_cpu(server: Server, stream: bool, calls: int, connections: int) -> None:
    """One round: warm up with a seventh of the calls, then count the server's CPU over the calls."""
    body = request_body(stream, server.second_turn)
    asyncio.run(load(server, body, calls // 7 + 1, connections))
    cpu, clock = cpu_seconds(server.pid), time.perf_counter()
    asyncio.run(load(server, body, calls, connections))
    server.cpu_us[stream].append((cpu_seconds(server.pid) - cpu) / calls * 1e6)
    server.calls_per_s[stream].append(calls / (time.perf_counter() - clock))


def measure_waits(server: Server, stream: bool, calls: int, connections: int) -> Waits:
    """Waits after a warm-up that opens the connections."""
    body = request_body(stream, server.second_turn)
    asyncio.run(load(server, body, connections, connections))
    return asyncio.run(load(server, body, calls, connections))
