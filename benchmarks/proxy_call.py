"""What the proxy with durable capture costs, beside a bare pass-through and two proxies that others use, in one run.

``make bench-proxy``. All forward the same requests (2 KB) to the same stand-in for vLLM, which answers with 8 KB and 64
logprobs, or streams 67 events; loopback only. The servers take turns, so that a busy machine burdens all alike. What
counts are ratios: microseconds differ between machines and with what else runs. The proxy is the real ``singletree
serve`` on SQLite with full durability; at the end the spans that it committed are counted against the calls that were
answered. Exact mode is measured on second turns, since a first turn has nothing to splice, and observe mode on the same.

Figures go to ``benchmarks/results/proxy.json``. Targets that are missed are named; only lost spans fail the run.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sqlite3
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import psutil

from benchmarks import peers, proxy_report, storage
from benchmarks.load import Server, load, measure_cpu, measure_waits, request_body
from benchmarks.servers import free_port, running
from benchmarks.upstream import MODEL

CONNECTIONS = 32
CALLS = 1500
"""Per server, kind of call and round."""
PEER_SHARE = 5
"""Peers get a fifth of the calls, since they take ten times as long and more."""
ROUNDS = 3
WAITS_AT = {1: 300, 32: 1600, 256: 2560}
"""Connections -> calls, for what callers wait."""
MEMORY_AT = (20_000, 100_000)
"""Calls answered when the proxy's memory is looked at."""
MEMORY_LIMIT_S = 900.0
ADMIN = "st-admin-benchmark"
Starter = Callable[[ExitStack, str, Path], Server]


@dataclass
class World:
    """Everything that runs."""

    bare: Server
    proxy: Server
    second: Server
    """The proxy on second turns, observe mode."""
    exact: Server
    """The same in exact mode."""
    peers: dict[str, Server | str]
    """Or why it is missing."""
    database: Path

    def answered(self) -> int:
        return self.proxy.answered + self.second.answered + self.exact.answered


def agent_key(proxy_url: str, engine_url: str, mode: str, name: str) -> str:
    """Registers a policy of the mode and its engine and claims one rollout; returns the key of its data plane."""
    headers = {"Authorization": f"Bearer {ADMIN}"}
    with httpx.Client(base_url=proxy_url, headers=headers, timeout=60, trust_env=False) as client:

        def call(method: str, path: str, body: dict[str, object]) -> dict[str, object]:
            reply = client.request(method, f"/api/{path}", json=body)
            if reply.is_error:
                raise RuntimeError(f"{method} {path}: {reply.status_code} {reply.text}")
            return reply.json()

        rollout = f"rol_{name}"
        call("PUT", f"policies/{name}", {"kind": "train", "model": MODEL, "mode": mode})
        call("PUT", f"engines/{name}", {"policy": name, "base_url": engine_url, "kind": "vllm"})
        task: dict[str, object] = {"payload": {}}
        body = {"id": rollout, "policy": name, "task": task, "purpose": "train", "deadline_s": 36_000}
        call("POST", "rollouts", body)
        claimed = call("POST", f"rollouts/{rollout}/claim", {"runner": "bench", "harness": "bench"})
        return str(claimed["key"])


def start_upstream(stack: ExitStack, folder: Path) -> str:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    argv = [sys.executable, "-m", "benchmarks.upstream", str(port)]
    stack.enter_context(running(argv, f"{url}/health", folder / f"upstream-{port}.log"))
    return url


def start_proxy(stack: ExitStack, folder: Path, database: Path) -> list[Server]:
    """The proxy, as three servers: for first turns, second turns, and second turns in exact mode; each has a stand-in
    of its own, since an engine serves one policy."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    settings = {
        "SINGLETREE_DATABASE_URL": f"sqlite:///{database}",
        "SINGLETREE_PORT": str(port),
        "SINGLETREE_ADMIN_KEY": ADMIN,
        "SINGLETREE_RUNNER_KEY": "st-runner-benchmark",
        "SINGLETREE_HEARTBEAT_TIMEOUT_S": "36000",  # no runner is there to send any
    }
    serve = [str(Path(sys.executable).with_name("singletree")), "serve"]
    pid = stack.enter_context(running(serve, f"{url}/health", folder / "proxy.log", **settings))
    chat = f"{url}/v1/chat/completions"
    servers = []
    for name, mode, second in (
        ("first", "observe", False),
        ("second", "observe", True),
        ("exact", "exact", True),
    ):
        key = agent_key(url, start_upstream(stack, folder), mode, name)
        server = Server("singletree serve, SQLite, durability full", pid, chat, key)
        if second:
            asyncio.run(load(server, request_body(False), 1, 1))  # the turn that is continued
            server = replace(server, name=f"  second turns, {mode}", second_turn=True)
        servers.append(server)
    return servers


def start_world(stack: ExitStack, folder: Path, with_peers: bool) -> World:
    upstream, port = start_upstream(stack, folder), free_port()
    argv = [sys.executable, "-m", "benchmarks.passthrough", str(port), upstream]
    url = f"http://127.0.0.1:{port}"
    pid = stack.enter_context(running(argv, f"{url}/docs", folder / "passthrough.log"))
    bare = Server("FastAPI + aiohttp, nothing kept", pid, f"{url}/v1/chat/completions", "none")
    database = folder / "bench.db"
    proxy, second, exact = start_proxy(stack, folder, database)
    others: dict[str, Server | str] = {}
    starters: dict[str, Starter] = {
        "agentlightning": peers.start_agentlightning,
        "litellm": peers.start_litellm,
    }
    for name, starter in starters.items():
        others[name] = "left out by --no-peers"
        if with_peers:
            try:
                others[name] = starter(stack, upstream, folder)
            except peers.Missing as reason:
                others[name] = str(reason)
    return World(bare, proxy, second, exact, others, database)


def measure_costs(world: World, rounds: int, calls: int) -> None:
    """CPU per call and per stream of every server, in turns."""
    for _ in range(rounds):
        for stream in (False, True):
            for server in (world.bare, world.proxy, world.second, world.exact):
                measure_cpu(server, stream, calls, CONNECTIONS)
            for peer in world.peers.values():
                if isinstance(peer, Server) and not (stream and peer.no_streams):
                    measure_cpu(peer, stream, calls // PEER_SHARE, CONNECTIONS)


def measure_latency(world: World) -> dict[str, Any]:
    """Milliseconds that callers wait: medians and 95th percentiles for each number of connections, and what the proxy
    adds to the pass-through's median. Each connection calls again at once, so that from some number on the machine is
    saturated and its throughput is what is waited for."""
    figures: dict[str, Any] = {}
    for connections, calls in WAITS_AT.items():
        row: dict[str, Any] = {}
        for kind, stream in (("call", False), ("stream", True)):
            bare, ours = (
                measure_waits(server, stream, calls, connections) for server in (world.bare, world.proxy)
            )
            pairs = [("whole", bare.whole, ours.whole)]
            if stream:
                pairs.append(("first_bytes", bare.first, ours.first))
            for what, theirs, own in pairs:
                row[f"{kind}_{what}_ms"] = {
                    "passthrough": spread(theirs),
                    "singletree": spread(own),
                    "added": round((statistics.median(own) - statistics.median(theirs)) * 1e3, 2),
                }
        figures[str(connections)] = row
    return figures


def spread(waits: list[float]) -> dict[str, float]:
    ordered = sorted(waits)
    return {
        "median": round(statistics.median(ordered) * 1e3, 2),
        "p95": round(ordered[int(len(ordered) * 0.95)] * 1e3, 2),
    }


def measure_memory(world: World, calls: tuple[int, int], limit_s: float) -> dict[str, Any]:
    """The proxy's resident memory after so many answered calls, those of the rest of the run included."""
    process, deadline = psutil.Process(world.proxy.pid), time.monotonic() + limit_s
    points: list[dict[str, Any]] = []
    body = request_body(False)
    for target in calls:
        while world.answered() < target and time.monotonic() < deadline:
            batch = min(2000, target - world.answered())
            asyncio.run(load(world.proxy, body, batch, CONNECTIONS))
        points.append({"calls": world.answered(), "rss_mb": round(process.memory_info().rss / 1e6, 1)})
    growth = points[1]["rss_mb"] / points[0]["rss_mb"] - 1
    return {
        "points": points,
        "growth_percent": round(growth * 100, 2),
        "complete": [point["calls"] for point in points] == list(calls),
    }


def committed(database: Path) -> int:
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        return connection.execute("SELECT count(*) FROM spans WHERE status = 'ok'").fetchone()[0]
    finally:
        connection.close()


def run(options: argparse.Namespace) -> proxy_report.Figures:
    """All measurements. Raises RuntimeError where a server fails."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="singletree-bench-")))
        world = start_world(stack, folder, options.peers)
        try:
            measure_costs(world, options.rounds, options.calls)
            latency = measure_latency(world)
            memory = measure_memory(world, options.memory_at, options.memory_limit)
        except RuntimeError:
            print((folder / "proxy.log").read_text()[-3000:], file=sys.stderr)
            raise
        spans = committed(world.database)
        return proxy_report.Figures(
            bare=world.bare,
            proxy=world.proxy,
            second=world.second,
            exact=world.exact,
            peers=world.peers,
            connections=CONNECTIONS,
            calls=options.calls,
            latency=latency,
            memory=memory,
            storage=storage.measure(None) | {"as_json": storage.as_json()},
            answered=world.answered(),
            spans=spans,
            load_average=os.getloadavg()[0],
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="What the proxy costs, beside others.")
    parser.add_argument(
        "--no-peers", dest="peers", action="store_false", help="leave out what is not our own"
    )
    parser.add_argument("--calls", type=int, default=CALLS, help="per server, kind of call and round")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--memory-at", type=int, nargs=2, default=MEMORY_AT, metavar="CALLS", help="look at the memory then"
    )
    parser.add_argument("--memory-limit", type=float, default=MEMORY_LIMIT_S, metavar="SECONDS")
    figures = run(parser.parse_args())
    proxy_report.write(figures)
    proxy_report.show(figures)
    return 0 if figures.spans >= figures.answered else 1


if __name__ == "__main__":
    sys.exit(main())
