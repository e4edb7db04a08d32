"""A span log with one policy and engines, and the few calls that the tests of publishing make again and again."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from sqlalchemy import Row, insert, select

from spanlog import policies, steps, versions
from spanlog.arrays import Ints
from spanlog.database import Database, open_database
from spanlog.models import Engine, EngineSwap
from spanlog.states import EngineState
from tests.engine_fixture import SERVED_NAME
from trainer.publish import PublishReport, SwapOutcome, publish, republish_stale

POLICY = "student"
GUARD_S = 0.005


@dataclass
class World:
    """One policy, its trainer's fence, and its engines."""

    database: Database
    fence: int

    @property
    def url(self) -> str:
        return self.database.display_url

    @classmethod
    def create(cls, folder: Path) -> World:
        database = open_database(f"sqlite:///{folder / 'log.sqlite'}", migrate=True)
        with database.begin() as conn:
            policies.put(
                conn,
                id=POLICY,
                kind="train",
                model=SERVED_NAME,
                sampling={"temperature": 1.0},
                group_size=2,
                rollouts_per_step=0,
                max_staleness=0,
                now=time.time(),
            )
            fence = steps.take_over(conn, POLICY)
        return cls(database, fence)

    def add_engine(self, engine_id: str, base_url: str, state: EngineState = EngineState.READY) -> None:
        """As if the proxy had registered it: ready at version 0, its base weights."""
        now = time.time()
        row = {
            "id": engine_id,
            "policy_id": POLICY,
            "base_url": base_url,
            "kind": "vllm",
            "state": state,
            "version": 0 if state == EngineState.READY else None,
            "capabilities": {},
            "error": None,
            "registered_at": now,
            "seen_at": now,
        }
        with self.database.begin() as conn:
            conn.execute(insert(Engine).values(**row))

    def publish(self, path: Path, expected_version: int = 0, version: int | None = None) -> PublishReport:
        return publish(
            self.database,
            policy_id=POLICY,
            fence=self.fence,
            expected_version=expected_version,
            path=path,
            step_id=None,
            version=version,
        )

    def republish(self) -> list[SwapOutcome]:
        return republish_stale(self.database, policy_id=POLICY, fence=self.fence)

    def engine(self, engine_id: str) -> Row[Any]:
        with self.database.read() as conn:
            return conn.execute(select(Engine.__table__).where(Engine.id == engine_id)).one()

    def swaps(self, engine_id: str) -> list[Row[Any]]:
        with self.database.read() as conn:
            query = select(EngineSwap.__table__).where(EngineSwap.engine_id == engine_id)
            return list(conn.execute(query.order_by(EngineSwap.begin_at)))

    def version(self) -> int:
        with self.database.read() as conn:
            return policies.get(conn, POLICY).version

    def label(self, engine_id: str, stream: Stream) -> tuple[Ints, Ints]:
        """The range of versions of each token of a finished stream."""
        return versions.label_tokens(
            stream.received_at,
            stream.started_at,
            stream.ended_at,
            self.swaps(engine_id),
            self.engine(engine_id).version,
            GUARD_S,
        )


@dataclass
class Stream:
    """A streamed completion, with the time at which each token came in.

    Never with a seed: vLLM 0.32.0 on a CPU dies ("CPU Generator does not use offset") when a seeded request is preempted
    and its prompt is computed in more than one piece, which a pause with many requests brings about.
    """

    base_url: str
    prompt: list[int]
    count: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    received_at: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    failure: str | None = None
    started_at: float = 0.0
    ended_at: float = 0.0
    _thread: threading.Thread | None = None

    def start(self) -> Stream:
        self._thread = threading.Thread(target=self.run, daemon=True)
        self._thread.start()
        return self

    def wait_for(self, count: int, timeout_s: float = 60.0) -> None:
        deadline = time.monotonic() + timeout_s
        while len(self.tokens) < count and time.monotonic() < deadline:
            time.sleep(0.002)
        assert len(self.tokens) >= count, self.failure

    def join(self, timeout_s: float = 60.0) -> Stream:
        assert self._thread is not None
        self._thread.join(timeout_s)
        assert not self._thread.is_alive(), "the stream still waits"
        return self

    def run(self) -> Stream:
        body = {
            "model": SERVED_NAME,
            "prompt": self.prompt,
            "max_tokens": self.count,
            "temperature": 1.0,
            "logprobs": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            "stream": True,
        }
        self.started_at = time.time()
        url = f"{self.base_url}/v1/completions"
        try:
            with httpx.stream("POST", url, json=body, timeout=90.0, trust_env=False) as reply:
                for line in reply.iter_lines():
                    if line.startswith("data: {"):
                        self._take(json.loads(line[6:]), time.time())
        except httpx.HTTPError as error:
            self.failure = repr(error)
        self.ended_at = time.time()
        return self

    def _take(self, event: dict[str, Any], now: float) -> None:
        if "error" in event:
            self.failure = str(event["error"])
            return
        choice = event["choices"][0]
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        ids = choice.get("token_ids") or []
        self.tokens += ids
        self.received_at += [now] * len(ids)
        if ids:
            self.logprobs += choice["logprobs"]["token_logprobs"]


def complete(base_url: str, prompt: list[int], count: int) -> dict[str, Any]:
    """A completion that is not streamed, with ids and logprobs."""
    body = {
        "model": SERVED_NAME,
        "prompt": prompt,
        "max_tokens": count,
        "temperature": 1.0,
        "logprobs": 0,
        "ignore_eos": True,
        "return_token_ids": True,
    }
    reply = httpx.post(f"{base_url}/v1/completions", json=body, timeout=90.0, trust_env=False)
    reply.raise_for_status()
    return reply.json()


def control_state(base_url: str) -> tuple[str, bool]:
    """The label of the weights, and whether the engine is paused."""
    label = httpx.get(f"{base_url}/weight_info", timeout=30.0, trust_env=False).json()["weight_version"]
    paused = httpx.get(f"{base_url}/is_paused", timeout=30.0, trust_env=False).json()["is_paused"]
    return label, paused
