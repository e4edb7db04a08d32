"""The figures of ``benchmarks.proxy_call`` as ``benchmarks/results/proxy.json`` and as a table."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.load import Server, request_body
from benchmarks.upstream import STREAM, WHOLE

RESULTS = Path(__file__).parent / "results" / "proxy.json"
TARGETS = {
    "call_vs_passthrough": 2.2,
    "stream_vs_passthrough": 2.0,
    "call_vs_agentlightning": 1 / 8,
    "call_vs_litellm": 1 / 25,
}
"""Ratios that are to be met, at most."""
ADDED_MS = 3.0
"""At one connection."""
GROWTH_PERCENT = 5.0
BYTES = {"bytes_per_sampled_token": 8.5, "bytes_per_context_token": 4.5}
THEIRS = {
    "call_vs_passthrough": "CPU per call of a FastAPI route that forwards with aiohttp and keeps nothing",
    "stream_vs_passthrough": "the same per stream",
    "call_vs_agentlightning": "CPU per call of agentlightning's server, which keeps its events in memory",
    "call_vs_litellm": "CPU per call of LiteLLM's proxy, without a database",
    "bytes_per_sampled_token": "the same ids and logprobs (8 decimals) as compact JSON, once each, no row or index around them",
    "bytes_per_context_token": "the same ids as compact JSON, once each, no row or index around them",
}
"""Ratio -> what ours is divided by."""


@dataclass(frozen=True)
class Figures:
    """Everything that was measured."""

    bare: Server
    proxy: Server
    second: Server
    exact: Server
    peers: dict[str, Server | str]
    connections: int
    calls: int
    latency: dict[str, Any]
    memory: dict[str, Any]
    storage: dict[str, Any]
    answered: int
    spans: int
    load_average: float

    def servers(self) -> list[Server]:
        peers = [peer for peer in self.peers.values() if isinstance(peer, Server)]
        return [self.bare, self.proxy, self.second, self.exact, *peers]


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else round(ours / theirs, 4)


def ratios(figures: Figures) -> dict[str, float | None]:
    """Ours over theirs; null where there is nothing to divide by."""
    ours, bare = figures.proxy, figures.bare
    found = {
        "call_vs_passthrough": ratio(ours.median_us(False), bare.median_us(False)),
        "stream_vs_passthrough": ratio(ours.median_us(True), bare.median_us(True)),
    }
    for name, peer in figures.peers.items():
        theirs = peer.median_us(False) if isinstance(peer, Server) else None
        found[f"call_vs_{name}"] = ratio(ours.median_us(False), theirs)
    for name in BYTES:
        found[name] = ratio(figures.storage[name], figures.storage["as_json"][name])
    return found


def missed(figures: Figures) -> list[str]:
    """Targets that were not met, and those that nothing could be said of."""
    found = ratios(figures)
    lines = []
    for name, limit in TARGETS.items():
        if (value := found[name]) is None:
            lines.append(f"{name}: not measured")
        elif value > limit:
            lines.append(f"{name} {value:.3g}, target {limit:.3g}")
    added = figures.latency["1"]["call_whole_ms"]["added"]
    if added > ADDED_MS:
        lines.append(f"{added} ms added at one connection, target {ADDED_MS}")
    growth = figures.memory["growth_percent"]
    if growth > GROWTH_PERCENT or not figures.memory["complete"]:
        lines.append(f"RSS grew by {growth} % over {figures.memory['points']}, target {GROWTH_PERCENT} %")
    for name, limit in BYTES.items():
        if figures.storage[name] > limit:
            lines.append(f"{name} {figures.storage[name]}, target {limit}")
    return lines


def document(figures: Figures) -> dict[str, Any]:
    found = ratios(figures)
    return {
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "load_average_at_the_end": round(figures.load_average, 2),
        },
        "traffic": {
            "connections": figures.connections,
            "calls_per_round": figures.calls,
            "request_bytes": len(request_body(False)),
            "reply_bytes": len(WHOLE),
            "stream_events": len(STREAM),
            "stream_bytes": sum(map(len, STREAM)),
        },
        "ratios": found,
        "theirs": THEIRS,
        "not_measured": {
            f"call_vs_{name}": peer for name, peer in figures.peers.items() if isinstance(peer, str)
        },
        "missed_targets": missed(figures),
        "exact_over_observe": {
            "call": ratio(figures.exact.median_us(False), figures.second.median_us(False)),
            "stream": ratio(figures.exact.median_us(True), figures.second.median_us(True)),
        },
        "servers": [server_figures(server) for server in figures.servers()],
        "milliseconds_by_connections": figures.latency,
        "memory": figures.memory,
        "storage": figures.storage,
        "spans_committed": figures.spans,
        "calls_answered": figures.answered,
    }


def server_figures(server: Server) -> dict[str, Any]:
    median = {stream: server.median_us(stream) for stream in (False, True)}
    return {
        "name": server.name.strip(),
        "cpu_us_per_call": None if median[False] is None else round(median[False]),
        "cpu_us_per_stream": None if median[True] is None else round(median[True]),
        "rounds_us_per_call": [round(value) for value in server.cpu_us[False]],
        "rounds_us_per_stream": [round(value) for value in server.cpu_us[True]],
        "calls_per_s": [round(value) for value in server.calls_per_s[False]],
        "streams_per_s": [round(value) for value in server.calls_per_s[True]],
        "no_streams": server.no_streams,
        "note": server.note,
    }


def write(figures: Figures) -> None:
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(document(figures), indent=2) + "\n")


def show(figures: Figures) -> None:
    print(
        f"CPU of the server's processes per call; {figures.connections} connections, request "
        f"{len(request_body(False))} B, reply {len(WHOLE)} B or {len(STREAM)} events; medians of the rounds"
    )
    print(f"  {'':<44}{'us/call':>9}{'us/stream':>11}{'of ours':>9}")
    ours = figures.proxy.median_us(False)
    for server in figures.servers():
        whole, stream = server.median_us(False), server.median_us(True)
        cells = ["-" if value is None else f"{value:.0f}" for value in (whole, stream)]
        share = "" if not whole or not ours else f"1/{whole / ours:.1f}"
        print(f"  {server.name:<44}{cells[0]:>9}{cells[1]:>11}{share:>9}")
    for name, value in ratios(figures).items():
        print(f"  {name:<44}{'null' if value is None else f'{value:.3f}':>9}")
    for name, peer in figures.peers.items():
        if isinstance(peer, str):
            print(f"  {name}: {peer}")
    print("Added to the pass-through's median, ms")
    for connections, row in figures.latency.items():
        added = ", ".join(f"{kind[:-3].replace('_', ' ')} {value['added']}" for kind, value in row.items())
        print(f"  {connections:>3} connections: {added}")
    print(f"RSS: {figures.memory}")
    print(f"Storage: {figures.storage}")
    print(f"{figures.spans} spans committed for {figures.answered} answered calls")
    for line in missed(figures):
        print(f"missed: {line}")
    print(f"Written to {RESULTS}")
