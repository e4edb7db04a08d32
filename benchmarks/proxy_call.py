"""CPU per call of the proxy with durable capture, beside a bare FastAPI + aiohttp pass-through, in one run.

Both forward the same requests (2 KB) to the same stand-in for vLLM, which answers with 8 KB and 64 logprobs, or
streams 67 events. 32 connections, loopback only, a fixed number of calls; the two servers take turns, so that a busy
machine burdens both alike. What counts is the ratio: microseconds differ between machines and with what else runs.
The proxy is the real ``singletree serve`` on SQLite with full durability; at the end the spans that it committed are
counted against the calls that were answered.
"""

from __future__ import annotations

import asyncio
import sqlite3
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import httpx
import orjson

from benchmarks.servers import cpu_seconds, free_port, running
from benchmarks.upstream import MODEL, STREAM, WHOLE

CONNECTIONS = 32
CALLS = 1500
"""Per server, kind of call and round."""
WARM_UP = 200
ROUNDS = 3
ADMIN = "st-admin-benchmark"


@dataclass
class Server:
    name: str
    pid: int
    url: str
    key: str
    cpu_us: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    """Streamed or not -> microseconds per call, one for each round."""
    calls_per_s: dict[bool, list[float]] = field(default_factory=lambda: {False: [], True: []})
    answered: int = 0


def request_body(stream: bool) -> bytes:
    """A request of about 2 KB: a system message, a question and one tool."""
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
    return orjson.dumps(
        {"model": MODEL, "messages": messages, "tools": [tool], "max_tokens": 64, "stream": stream}
    )


async def load(server: Server, stream: bool, calls: int) -> None:
    """Makes ``calls`` calls over the connections. Raises RuntimeError if one is not answered whole."""
    body = request_body(stream)
    headers = {"Authorization": f"Bearer {server.key}", "Content-Type": "application/json"}
    left = iter(range(calls))

    async def one_connection(session: aiohttp.ClientSession) -> None:
        for _ in left:
            async with session.post(f"{server.url}/v1/chat/completions", data=body, headers=headers) as reply:
                answer = await reply.read()
                whole = b"[DONE]" in answer[-20:] if stream else b'"finish_reason":"stop"' in answer
                if reply.status != 200 or not whole:
                    raise RuntimeError(f"{server.name} answered {reply.status}: {answer[:300]!r}")
                server.answered += 1

    connector = aiohttp.TCPConnector(limit=CONNECTIONS)
    async with aiohttp.ClientSession(connector=connector) as session:
        await asyncio.gather(*(one_connection(session) for _ in range(CONNECTIONS)))


def measure(server: Server, stream: bool) -> None:
    """One round: warm up, then count the server's CPU over the calls."""
    asyncio.run(load(server, stream, WARM_UP))
    cpu, clock = cpu_seconds(server.pid), time.perf_counter()
    asyncio.run(load(server, stream, CALLS))
    server.cpu_us[stream].append((cpu_seconds(server.pid) - cpu) / CALLS * 1e6)
    server.calls_per_s[stream].append(CALLS / (time.perf_counter() - clock))


def agent_key(proxy_url: str, engine_url: str) -> str:
    """Registers policy and engine and claims one rollout; returns the key of its data plane."""
    headers = {"Authorization": f"Bearer {ADMIN}"}
    with httpx.Client(base_url=proxy_url, headers=headers, timeout=60, trust_env=False) as client:

        def call(method: str, path: str, body: dict[str, object]) -> dict[str, object]:
            reply = client.request(method, f"/api/{path}", json=body)
            if reply.is_error:
                raise RuntimeError(f"{method} {path}: {reply.status_code} {reply.text}")
            return reply.json()

        call("PUT", "policies/bench", {"kind": "train", "model": MODEL, "mode": "observe"})
        call("PUT", "engines/bench", {"policy": "bench", "base_url": engine_url, "kind": "vllm"})
        task: dict[str, object] = {"payload": {}}
        body = {"id": "rol_bench", "policy": "bench", "task": task, "purpose": "train", "deadline_s": 3600}
        call("POST", "rollouts", body)
        claimed = call("POST", "rollouts/rol_bench/claim", {"runner": "bench", "harness": "bench"})
        return str(claimed["key"])


def report(servers: list[Server], spans: int) -> None:
    bare, proxy = servers
    whole, streamed, request = len(WHOLE), sum(map(len, STREAM)), len(request_body(False))
    print(
        f"CPU of the server process per call; {CONNECTIONS} connections, request {request} B, reply {whole} B or "
        f"{len(STREAM)} events ({streamed} B), median of {ROUNDS} rounds of {CALLS} calls"
    )
    print(f"  {'':<44}{'us/call':>9}{'us/stream':>11}{'calls/s':>9}{'streams/s':>11}")
    for server in servers:
        figures = [
            statistics.median(values[kind])
            for values in (server.cpu_us, server.calls_per_s)
            for kind in (False, True)
        ]
        print(
            f"  {server.name:<44}{figures[0]:>9.0f}{figures[1]:>11.0f}{figures[2]:>9.0f}{figures[3]:>11.0f}"
        )
    ratios = [
        statistics.median(proxy.cpu_us[kind]) / statistics.median(bare.cpu_us[kind]) for kind in (False, True)
    ]
    print(f"  {'ratio':<44}{ratios[0]:>9.2f}{ratios[1]:>11.2f}")
    print(f"  {spans} spans committed for {proxy.answered} answered calls")


def main() -> int:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="singletree-bench-")))
        ports = [free_port() for _ in range(3)]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        database = folder / "bench.db"
        settings = {
            "SINGLETREE_DATABASE_URL": f"sqlite:///{database}",
            "SINGLETREE_PORT": str(ports[2]),
            "SINGLETREE_ADMIN_KEY": ADMIN,
            "SINGLETREE_RUNNER_KEY": "st-runner-benchmark",
            "SINGLETREE_HEARTBEAT_TIMEOUT_S": "3600",  # no runner is there to send any
        }
        upstream = [sys.executable, "-m", "benchmarks.upstream", str(ports[0])]
        stack.enter_context(running(upstream, f"{urls[0]}/health", folder / "upstream.log"))
        bare = [sys.executable, "-m", "benchmarks.passthrough", str(ports[1]), urls[0]]
        bare_pid = stack.enter_context(running(bare, f"{urls[1]}/docs", folder / "passthrough.log"))
        serve = [str(Path(sys.executable).with_name("singletree")), "serve"]
        proxy_pid = stack.enter_context(running(serve, f"{urls[2]}/health", folder / "proxy.log", **settings))
        servers = [
            Server("FastAPI + aiohttp, nothing kept", bare_pid, urls[1], "none"),
            Server(
                "singletree serve, SQLite, durability full", proxy_pid, urls[2], agent_key(urls[2], urls[0])
            ),
        ]
        try:
            for _ in range(ROUNDS):
                for stream in (False, True):
                    for server in servers:
                        measure(server, stream)
        except RuntimeError:
            print((folder / "proxy.log").read_text()[-3000:], file=sys.stderr)
            raise
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
        spans = connection.execute("SELECT count(*) FROM spans WHERE status = 'ok'").fetchone()[0]
        connection.close()
        report(servers, spans)
    return 0 if spans >= servers[1].answered else 1


if __name__ == "__main__":
    sys.exit(main())
