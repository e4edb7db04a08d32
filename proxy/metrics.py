"""Prometheus metrics, in a registry per application so that tests can run several in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.calls = Counter(
            "singletree_calls_total",
            "Model calls answered.",
            ("stream", "http_status"),
            registry=self.registry,
        )
        self.spans = Counter(
            "singletree_spans_total",
            "Spans committed. reason: why untrainable, empty if trainable.",
            ("status", "reason"),
            registry=self.registry,
        )
        self.commit_failures = Counter(
            "singletree_commit_failures_total", "Spans that the database refused.", registry=self.registry
        )
        self.retries = Counter(
            "singletree_upstream_retries_total", "Second tries at an engine.", registry=self.registry
        )
        self.latency = Histogram(
            "singletree_call_seconds",
            "From the request's arrival to the last byte.",
            ("stream",),
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.commit_latency = Histogram(
            "singletree_commit_seconds",
            "Wait for a span's commit, which holds back the end of the reply.",
            buckets=(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1, 5),
            registry=self.registry,
        )
        self.in_flight = Gauge(
            "singletree_calls_in_flight", "Model calls being answered.", registry=self.registry
        )
        self.stalls = Counter(
            "singletree_inexact_arrival_total",
            "Streams whose arrival times were too late to label tokens exactly.",
            registry=self.registry,
        )

        self._calls: dict[tuple[bool, int], Counter] = {}
        self._latencies: dict[bool, Histogram] = {}
        self._spans: dict[tuple[str, str | None], Counter] = {}

    # Children are kept: looking one up by its labels costs more than counting.

    def count_call(self, stream: bool, http_status: int, seconds: float) -> None:
        calls = self._calls.get((stream, http_status))
        if calls is None:
            calls = self._calls[stream, http_status] = self.calls.labels(_word(stream), http_status)
        latency = self._latencies.get(stream)
        if latency is None:
            latency = self._latencies[stream] = self.latency.labels(_word(stream))
        calls.inc()
        latency.observe(seconds)

    def count_span(self, status: str, reason: str | None) -> None:
        spans = self._spans.get((status, reason))
        if spans is None:
            spans = self._spans[status, reason] = self.spans.labels(status, reason or "")
        spans.inc()

    def watch_queue(self, depth: Callable[[], int]) -> None:
        Gauge(
            "singletree_span_queue_depth", "Spans waiting for their commit.", registry=self.registry
        ).set_function(depth)

    def watch_engines(
        self,
        states: Callable[[], Iterable[tuple[str, str, str, int, int | None]]],
        waiting: Callable[[], Mapping[str, int]],
    ) -> None:
        self.registry.register(_EngineCollector(states, waiting))

    def render(self) -> bytes:
        return generate_latest(self.registry)


def _word(stream: bool) -> str:
    return "true" if stream else "false"


class _EngineCollector(Collector):
    """Engine states as the proxy sees them at the time of the scrape."""

    def __init__(
        self,
        states: Callable[[], Iterable[tuple[str, str, str, int, int | None]]],
        waiting: Callable[[], Mapping[str, int]],
    ) -> None:
        self._states = states
        self._waiting = waiting

    def collect(self) -> Iterable[GaugeMetricFamily]:
        state = GaugeMetricFamily(
            "singletree_engine_state", "1 for the state it is in.", labels=("engine", "policy", "state")
        )
        flight = GaugeMetricFamily("singletree_engine_in_flight", "Calls at the engine.", labels=("engine",))
        version = GaugeMetricFamily(
            "singletree_engine_version", "Policy version that it serves.", labels=("engine",)
        )
        for engine, policy, name, in_flight, served in self._states():
            state.add_metric((engine, policy, name), 1)
            flight.add_metric((engine,), in_flight)
            if served is not None:
                version.add_metric((engine,), served)
        queue = GaugeMetricFamily(
            "singletree_calls_waiting", "Calls that wait for an engine.", labels=("policy",)
        )
        for policy, count in self._waiting().items():
            queue.add_metric((policy,), count)
        return (state, flight, version, queue)
