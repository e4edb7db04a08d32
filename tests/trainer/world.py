"""Stands in for proxy, engine and runner: fills a span log with rollouts whose logprobs are those of the weights that
are published at that moment."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import torch
from safetensors.torch import load_file
from sqlalchemy import insert, select, update

from spanlog import groups, policies, rewards, rollouts, steps
from spanlog.database import Database, open_database
from spanlog.models import Engine, Group, TrainStep
from spanlog.writer import SpanDraft, SpanWriter
from tests.engine_fixture import SERVED_NAME
from trainer.config import ModelConfig, Recipe
from trainer.data.packing import pack
from trainer.data.read import read_groups
from trainer.data.samples import Turn, build_samples
from trainer.model import Model

POLICY, TEACHER = "student", "teacher"
TEMPERATURE = 0.7
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_price",
            "description": "Price of an item.",
            "parameters": {"type": "object", "properties": {"item": {"type": "string"}}},
        },
    }
]

Reward = Callable[[int, int], float | None]


class World:
    """A database with one policy and one teacher, and the tiny model's folder."""

    def __init__(self, folder: Path, model: Path, *, group_size: int = 4) -> None:
        self.folder, self.model, self.group_size = folder, model, group_size
        self.url = f"sqlite:///{folder / 'log.db'}"
        self.database: Database = open_database(self.url, migrate=True, durability="async")
        self.writer = SpanWriter(self.database)
        self.logprob_error = 0.0
        """Added to what the engine logs."""
        self.engine_url: str | None = None
        """A real engine that samples, in place of made-up tokens."""
        self.first_token = 20
        """Of every prompt."""
        with self.database.begin() as conn:
            for name, kind in ((POLICY, "train"), (TEACHER, "frozen")):
                policies.put(
                    conn,
                    id=name,
                    kind=kind,
                    model=SERVED_NAME,
                    sampling={"temperature": TEMPERATURE, "top_p": 1.0} if kind == "train" else {},
                    group_size=group_size,
                    rollouts_per_step=0,
                    max_staleness=0,
                    now=time.time(),
                )
                row = {
                    "id": f"eng_{name}",
                    "policy_id": name,
                    "base_url": "http://127.0.0.1:9",
                    "kind": "vllm",
                }
                # gone: it labels what it sampled before, and takes no part in a publish
                state = {"state": "gone", "version": 0, "registered_at": 0.0, "seen_at": 0.0}
                conn.execute(insert(Engine).values(**row, **state, capabilities={}))

    def close(self) -> None:
        self.writer.close()
        self.database.close()

    def recipe(self, *stages: dict[str, Any], **changes: Any) -> Recipe:
        base: dict[str, Any] = {
            "policy": POLICY,
            "database": self.url,
            "output": str(self.folder / "run"),
            "model": {"path": str(self.model), "autocast": "none", "threads": 1},
            "publish": {"allow_no_engine": True},
            "parity": {"max_gap": 2e-5},
            "poll_s": 0.01,
            "stages": list(stages),
        }
        return Recipe.model_validate(base | changes)

    def weights(self) -> Path:
        """What an engine of the policy would serve now."""
        with self.database.read() as conn:
            version = policies.get(conn, POLICY).version
            row = steps.read_version(conn, POLICY, version)
        return Path(row.path) if row is not None and row.path else self.model

    def play(self, count: int, reward: Reward, *, turns: int = 2) -> list[str]:
        """Runs ``count`` groups to their end with the weights published now; returns the groups' ids."""
        model = Model(ModelConfig(path=str(self.weights()), autocast="none"))
        with self.database.begin() as conn:
            version = policies.get(conn, POLICY).version
            if self.engine_url is None:
                conn.execute(update(Engine).where(Engine.policy_id == POLICY).values(version=version))
        return [self._play_group(model, number, reward, turns) for number in range(count)]

    def _play_group(self, model: Model, number: int, reward: Reward, turns: int) -> str:
        group = self._open_group(POLICY)
        for rollout in group.rollouts:
            rng = np.random.default_rng([number, rollout.index])
            prompt = np.concatenate([[self.first_token], np.arange(21, 45), rng.integers(50, 300, 6)]).astype(
                np.int32
            )
            for _ in range(turns):
                completion, logprobs = self._sample(model, prompt, rng)
                self._write_span(rollout.id, prompt, completion, logprobs)
                prompt = np.concatenate([prompt, completion, rng.integers(50, 300, 4)]).astype(np.int32)
            self._finish(rollout.id, reward(number, rollout.index))
        return group.id

    def _sample(
        self, model: Model, prompt: np.ndarray, rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray]:
        """Completion ids and their logprobs."""
        if self.engine_url is None:
            completion = rng.integers(50, 300, 5).astype(np.int32)
            return completion, logprobs_of(model, prompt, completion) + np.float32(self.logprob_error)
        body = {
            "model": SERVED_NAME,
            "prompt": prompt.tolist(),
            "max_tokens": 6,
            "temperature": TEMPERATURE,
            "top_p": 1.0,
            "top_k": 0,
            "logprobs": 0,
            "return_token_ids": True,
        }
        reply = httpx.post(f"{self.engine_url}/v1/completions", json=body, timeout=60.0, trust_env=False)
        (choice,) = reply.raise_for_status().json()["choices"]
        logprobs = np.array(choice["logprobs"]["token_logprobs"], np.float32)
        return np.array(choice["token_ids"], np.int32), logprobs

    def use_engine(self, base_url: str) -> None:
        """As if the proxy had registered it: ready, at version 0."""
        self.engine_url = base_url
        with self.database.begin() as conn:
            values = {"base_url": base_url, "state": "ready", "version": 0, "seen_at": time.time()}
            conn.execute(update(Engine).where(Engine.policy_id == POLICY).values(**values))

    def _open_group(self, policy: str) -> groups.GroupView:
        with self.database.begin() as conn:
            now = time.time()
            group = groups.create_group(
                conn,
                id=None,
                policy_id=policy,
                task={"payload": {"now": now}},
                size=None,
                purpose="train",
                deadline_at=now + 3600,
                now=now,
            )
            for rollout in group.rollouts:
                rollouts.claim(conn, rollout.id, "world", "none", now)
        return group

    def _write_span(
        self, rollout_id: str, prompt: np.ndarray, completion: np.ndarray, logprobs: np.ndarray
    ) -> None:
        now = time.time()
        draft = SpanDraft(
            rollout_id=rollout_id,
            policy_id=POLICY,
            engine_id=f"eng_{POLICY}",
            started_at=now,
            ended_at=now,
            request=b"{}",
            prompt_tokens=prompt,
            completion_tokens=completion,
            logprobs=logprobs,
            sampling={"temperature": TEMPERATURE},
            finish_reason="stop",
        )
        self.writer.submit(draft).result(30)

    def _finish(self, rollout_id: str, value: float | None) -> None:
        with self.database.begin() as conn:
            now = time.time()
            if value is not None:
                rewards.add(
                    conn,
                    rollout_id=rollout_id,
                    span_id=None,
                    name="reward",
                    value=value,
                    source="test",
                    idempotency_key=None,
                    now=now,
                )
            rollouts.finish(conn, rollout_id, "succeeded" if value is not None else "failed", None, None, now)

    def teach(self, count: int) -> None:
        """Groups of the teacher: words and a tool call, no tokens."""
        for number in range(count):
            group = self._open_group(TEACHER)
            for rollout in group.rollouts:
                self._teach_rollout(rollout.id, f"item {number}-{rollout.index}")
                self._finish(rollout.id, 1.0)

    def _teach_rollout(self, rollout_id: str, item: str) -> None:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": "You are a clerk."},
            {"role": "user", "content": f"What does {item} cost?"},
        ]
        call = {"name": "get_price", "arguments": json.dumps({"item": item})}
        asked = {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": "c1", "type": "function", "function": call}],
        }
        result = {"role": "tool", "tool_call_id": "c1", "content": "7"}
        answer = {"role": "assistant", "content": "7"}
        for history, reply in ((messages, asked), ([*messages, asked, result], answer)):
            now = time.time()
            draft = SpanDraft(
                rollout_id=rollout_id,
                policy_id=TEACHER,
                engine_id=f"eng_{TEACHER}",
                started_at=now,
                ended_at=now,
                request=json.dumps({"model": "m", "messages": history, "tools": TOOLS}).encode(),
                reply={"message": reply, "finish_reason": "stop", "usage": None},
                finish_reason="stop",
            )
            self.writer.submit(draft).result(30)

    def logprob_changes(self, group_ids: list[str]) -> list[tuple[int, float]]:
        """(rollout's index, mean change of its tokens' logprobs since they were sampled) under the published weights."""
        model = Model(ModelConfig(path=str(self.weights()), autocast="none"))
        changes = []
        with self.database.read() as conn:
            for group in read_groups(conn, group_ids):
                for index, rollout in enumerate(group):
                    new = [logprobs_of(model, turn.prompt, turn.completion) for turn in rollout.turns]
                    old = [turn.logprobs for turn in rollout.turns if turn.logprobs is not None]
                    changes.append((index, float((np.concatenate(new) - np.concatenate(old)).mean())))
        return changes

    @staticmethod
    def same_weights(left: Path, right: Path) -> bool:
        """Bit for bit."""
        mine, theirs = (load_file(folder / "model.safetensors") for folder in (left, right))
        return mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)

    def step_rows(self) -> list[Any]:
        """The policy's steps that are not void."""
        with self.database.read() as conn:
            query = select(TrainStep.__table__).where(
                TrainStep.policy_id == POLICY, TrainStep.void.is_(False)
            )
            return list(conn.execute(query.order_by(TrainStep.number)))

    def group_states(self) -> dict[str, str]:
        with self.database.read() as conn:
            return {
                row.id: row.state
                for row in conn.execute(select(Group.id, Group.state).where(Group.policy_id == POLICY))
            }


def logprobs_of(model: Model, prompt: np.ndarray, completion: np.ndarray) -> np.ndarray:
    """What an engine would log for this completion."""
    if int(prompt.max()) >= model.vocabulary:
        return np.full(len(completion), -1.0, np.float32)
    zeros = np.zeros(len(completion), np.int32)
    turn = Turn("x", prompt, completion, zeros.astype(np.float32), zeros, zeros, TEMPERATURE)
    samples, _ = build_samples(0, [turn])
    with torch.no_grad():
        return model.logprobs(pack(samples, max_rows=1, max_tokens=None, share=False)[0]).numpy()
