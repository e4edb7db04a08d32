"""One real system for the harness tests: vLLM with real Qwen3 tokens, the director, a served proxy, and a harness.

``World.run`` gives one harness one task as the runner would: an adapter's ``prepare``, the program under its limit,
``collect``. What it returns knows the spans, and what must hold for every harness (``Run.check``).
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness_adapters.protocol import Endpoint, Finished, Job, Outcome, ProcessAdapter, Task
from harness_adapters.runner.process import run_process
from spanlog.lineage import Lineage, LineageSpan, Role, analyse
from spanlog.records import SpanRecord
from tests.engine_fixture import EngineProcess
from tests.harnesses.director import Asked, Director
from tests.harnesses.lines import divergence, history, lines
from tests.harnesses.qwen3_model import WINDOW
from tests.harnesses.script import Line, Script, Turns
from tests.proxy.conftest import Served, serve

MODEL = "qwen3-tiny"
"""What harnesses are told to ask for: a name that none of them knows anything about."""
KV_CACHE_BYTES = 256 << 20
TIMEOUT_S = 150.0
ENGINE_OPTIONS = (
    "--reasoning-parser",
    "qwen3",
    "--structured-outputs-config",
    json.dumps({"enable_in_reasoning": True}),  # otherwise the director's grammar begins only after </think>
)

HAS_EXACT_MODE = find_spec("proxy.history") is not None


def start_engine(model: Path, log: Path) -> EngineProcess:
    """The engine that harnesses talk to; launched, not waited for."""
    return EngineProcess(
        model, log, name=MODEL, max_model_len=WINDOW, kv_cache_bytes=KV_CACHE_BYTES, extra=ENGINE_OPTIONS
    ).launch()


@dataclass
class Run:
    """One rollout that has ended."""

    outcome: Outcome
    finished: Finished | None
    """How its process ended; null for a harness that is a library."""
    spans: list[SpanRecord]
    """In order of their start."""
    asked: list[Asked]
    """What reached the engine."""
    failures: list[str]
    """The director's."""
    files: dict[str, str] = field(default_factory=dict)
    """What the harness left in its workspace: relative path -> text."""
    exact: bool = False

    def describe(self) -> str:
        """For the message of a failed assertion."""
        finished = self.finished
        output = (
            f"exit {finished.exit_code}, timed out {finished.timed_out}\n{finished.stdout[-3000:]}\n{finished.stderr[-3000:]}"
            if finished
            else ""
        )
        rows = [
            (span.dialect, span.status, span.http_status, span.trainable, span.untrainable_reason, span.error)
            for span in self.spans
        ]
        asked = [(one.line, one.text[:80]) for one in self.asked]
        return f"{self.outcome}\n{output}\nspans: {rows}\nasked: {asked}\nfailures: {self.failures}"

    def of(self, line: Line) -> list[SpanRecord]:
        """The spans of the calls that the script gave to ``line``, in the order in which they were asked."""
        by_id = {span.upstream_id: span for span in self.spans}
        return [by_id[one.upstream_id] for one in self.asked if one.line == line]

    def longest_line(self) -> list[SpanRecord]:
        """The longest chain of exact extensions, judged by tokens."""
        return max(lines(self.spans), key=len)

    def lineage(self) -> Lineage:
        """What the span log makes of the rollout."""
        return analyse([LineageSpan.from_record(span) for span in self.spans])

    def roles(self, line: Line) -> set[Role]:
        """What the span log calls the calls that the script gave to ``line``."""
        places = self.lineage().places
        return {places[span.id].role for span in self.of(line)}

    def forks(self) -> list[tuple[int, int, int]]:
        """Main-line calls that do not extend the one before: (turn, tokens shared with that one, tokens of its history)."""
        found = []
        for turn, (before, span) in enumerate(pairwise(self.of("main")), start=2):
            shared, size = divergence(span, before), history(before).size
            if shared < size:
                found.append((turn, shared, size))
        return found

    def check(
        self,
        script: Turns,
        *,
        side: int | None = None,
        forks: Sequence[int] = (),
        untrainable: str | None = None,
    ) -> None:
        """All that must hold for every harness: it succeeded; each call left a span that trains; each turn of the main
        line was asked for once and in order; ``side`` calls beside it (null: any number); and in exact mode the main
        line is one chain of exact extensions, but for the turns ``forks`` of a harness that rewrites its history.
        ``untrainable`` is the reason why none of its calls trains, where that is so.
        """
        __tracebackhide__ = True
        words = self.describe()
        assert self.outcome.failure is None, words
        assert not self.failures, words
        assert [one.text for one in self.asked if one.line == "main"] == list(script.texts), words
        assert {span.upstream_id for span in self.spans} == {one.upstream_id for one in self.asked}, words
        assert side is None or len(self.of("side")) == side, words
        for span in self.spans:
            trains = (span.trainable, span.untrainable_reason)
            assert span.status == "ok" and trains == (untrainable is None, untrainable), words
            assert span.prompt_tokens is not None and span.prompt_tokens.size > 0, words
            assert span.completion_tokens is not None and span.logprobs is not None, words
            assert span.completion_tokens.size == span.logprobs.size > 0, words
        if self.exact:
            assert [turn for turn, _, _ in self.forks()] == list(forks), f"{self.forks()}\n{words}"
            for turn in forks:
                span = self.of("main")[turn - 1]
                assert span.parent_id is None or span.fork_cause, words
        if self.exact and not forks:
            main = tuple(span.id for span in self.of("main"))
            assert self.lineage().main == main, f"{self.lineage()}\n{words}"
            recorded = [(span.parent_id, span.fork_cause) for span in self.of("main")]
            # A history that begins with a reply which the harness made up was never recorded.
            first = (None, "unmatched" if script.preset else None)
            assert recorded == [first, *((parent, None) for parent in main[:-1])], f"{recorded}\n{words}"
            assert [span.id for span in self.longest_line()] == [span.id for span in self.of("main")], words


@dataclass
class World:
    """What a test runs harnesses in."""

    engine: EngineProcess
    director: Director
    proxy: Served
    exact: bool

    def start_rollout(self, prompt: str, **policy: Any) -> tuple[str, Endpoint]:
        """A claimed rollout under a training policy: its id, and where its model calls go."""
        mode = "exact" if self.exact else "observe"
        fields = {"kind": "train", "model": MODEL, "sampling": {"temperature": 1.0}, "mode": mode, **policy}
        self.proxy.ok("PUT", "/api/policies/pol", fields)
        self.proxy.ok("PUT", "/api/engines/real", {"policy": "pol", "base_url": self.director.url})
        body = {"policy": "pol", "task": {"payload": {"prompt": prompt}}, "purpose": "train"}
        rollout = self.proxy.ok("POST", "/api/rollouts", body)["id"]
        key = self.proxy.ok("POST", f"/api/rollouts/{rollout}/claim", {"runner": "test"})["key"]
        return rollout, Endpoint(f"{self.proxy.url}/v1", key, MODEL)

    def run(
        self,
        adapter: ProcessAdapter,
        prompt: str,
        script: Script,
        *,
        files: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        **policy: Any,
    ) -> Run:
        """One task in one harness, whose workspace holds ``files`` at the start."""
        adapter.check()
        with tempfile.TemporaryDirectory(prefix="singletree-harness-") as folder:
            workspace, scratch = Path(folder) / "workspace", Path(folder) / "scratch"
            scratch.mkdir()
            workspace.mkdir()
            for name, text in (files or {}).items():
                (workspace / name).parent.mkdir(parents=True, exist_ok=True)
                (workspace / name).write_text(text)

            def work(rollout: str, endpoint: Endpoint) -> tuple[Outcome, Finished]:
                job = Job(rollout, Task({"prompt": prompt}), endpoint, workspace, scratch, timeout_s)
                launch = adapter.prepare(job)
                finished = asyncio.run(run_process(launch, marker=rollout, timeout_s=timeout_s))
                return adapter.collect(job, finished), finished

            run = self.observe(work, prompt, script, **policy)
            run.files = read_files(workspace)
            return run

    def observe(
        self,
        work: Callable[[str, Endpoint], tuple[Outcome, Finished | None]],
        prompt: str,
        script: Script,
        **policy: Any,
    ) -> Run:
        """``work(rollout id, endpoint)`` under ``script``; for harnesses that are no program of their own."""
        self.director.direct(None)
        rollout, endpoint = self.start_rollout(prompt, **policy)
        self.director.direct(script)
        try:
            outcome, finished = work(rollout, endpoint)
            self.proxy.ok("POST", f"/api/rollouts/{rollout}/finish", {"state": "succeeded"})
            asked, failures = self.director.asked, self.director.failures
        finally:
            self.director.direct(None)
        return Run(outcome, finished, self.proxy.spans(rollout), asked, failures, exact=self.exact)


def read_files(folder: Path) -> dict[str, str]:
    """Text files below it, hidden folders left out."""
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        if path.is_file() and not any(part.startswith(".") for part in inside.parts):
            found[str(inside)] = path.read_text(errors="replace")
    return found


@contextmanager
def open_world(engine: EngineProcess, database: Path, *, exact: bool) -> Iterator[World]:
    """A proxy and a director on a warm engine."""
    with (
        Director(engine.base_url) as director,
        serve(f"sqlite:///{database}", heartbeat_timeout_s=3600.0) as served,
    ):
        yield World(engine, director, served, exact)


def tool_names(asked: Sequence[Asked]) -> set[str]:
    """Names of the tools that the requests offer."""
    return {tool["function"]["name"] for one in asked for tool in one.body.get("tools") or []}
