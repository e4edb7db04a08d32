"""Bytes that the span log grows by, for each sampled token, each context token and each turn of a conversation [I5].

``python -m benchmarks.storage [--postgres URL]``. Conversations of an agent with tools, the text being this repository's
own, are written through the span writer into a fresh SQLite file (and, with a server's URL, into a fresh PostgreSQL
database on it). Token ids are spread over all of Qwen3's vocabulary, one for each piece of text: real ids are smaller
numbers and take a little less.

Files are measured, not payloads. What tokens cost is the difference between files: without any ids, with the prompts'
(among which a sampled id is an id like others), and with all arrays. So the pages, headers and TOAST that hold the
arrays count as theirs; rows, requests and replies are in *all in*, which is per token of any kind.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
import tempfile
import uuid
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from sqlalchemy import create_engine, insert, make_url, text

from spanlog import groups, policies, rollouts
from spanlog.database import Database, open_database
from spanlog.drafts import SpanDraft
from spanlog.models import Engine
from spanlog.writer import SpanWriter

ROOT = Path(__file__).resolve().parents[1]
VOCABULARY = 151_936
PIECE = re.compile(r"\s?\w{1,5}|\s+|.")
"""About as many characters a token as a tokenizer makes of English and code."""
CONVERSATIONS = 4
TURNS = (10, 20, 40, 80)
SAMPLED_CHARACTERS = (200, 1200)
RESULT_CHARACTERS = (100, 3000)
BYTES_PER_SAMPLED_TOKEN = 8.5
BYTES_PER_CONTEXT_TOKEN = 4.5


@dataclass(frozen=True)
class Size:
    """What was written, and what it took."""

    bytes: int
    sampled: int
    context: int


class Agent:
    """Conversations that are the same in every file: prompts of 6,000 characters, 12 tools, replies, tool results."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        files = [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("*/*.py"))]
        self.text = "\n".join(path.read_text() for path in files)
        self.ids: dict[str, int] = {}

    def words(self, characters: tuple[int, int]) -> str:
        length = self.chance.randint(*characters)
        begin = self.chance.randrange(len(self.text) - length)
        return self.text[begin : begin + length]

    def encode(self, words: str) -> list[int]:
        vocabulary = self.ids
        return [
            vocabulary.setdefault(piece, (len(vocabulary) * 7919) % VOCABULARY)
            for piece in PIECE.findall(words)
        ]

    def turns(self, count: int) -> Iterator[SpanDraft]:
        """Drafts of one conversation, without what the database gives them."""
        tools = [
            {"type": "function", "function": {"name": f"tool{n}", "description": self.words((300, 900))}}
            for n in range(12)
        ]
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": self.words((6000, 6000))},
            {"role": "user", "content": self.words((300, 800))},
        ]
        prompt = self.encode(json.dumps([tools, messages]))
        for _ in range(count):
            said = self.words(SAMPLED_CHARACTERS)
            message = {
                "role": "assistant",
                "content": said[: len(said) // 2],
                "tool_calls": [
                    {
                        "id": f"chatcmpl-tool-{self.chance.getrandbits(64):016x}",
                        "type": "function",
                        "function": {
                            "name": "tool3",
                            "arguments": json.dumps({"code": said[len(said) // 2 :]}),
                        },
                    }
                ],
            }
            sampled = self.encode(said)
            logprobs = -np.random.default_rng(len(prompt)).exponential(0.5, len(sampled)).astype(np.float32)
            body = {"model": "m", "messages": messages, "tools": tools, "temperature": 1.0}
            yield SpanDraft(
                rollout_id="",
                policy_id="",
                started_at=0.0,
                ended_at=1.0,
                request=json.dumps(body, ensure_ascii=False).encode(),
                reply={
                    "message": message,
                    "finish_reason": "tool_calls",
                    "usage": {"prompt_tokens": len(prompt)},
                },
                prompt_tokens=np.array(prompt, np.int32),
                completion_tokens=np.array(sampled, np.int32),
                logprobs=logprobs,
                sampling={"temperature": 1.0, "top_p": 1.0, "top_k": 0},
                finish_reason="tool_calls",
                upstream_id=f"chatcmpl-{self.chance.getrandbits(128):032x}",
            )
            result = self.words(RESULT_CHARACTERS)
            call = message["tool_calls"][0]["id"]
            messages = [*messages, message, {"role": "tool", "tool_call_id": call, "content": result}]
            prompt = prompt + sampled + self.encode(result)


def write(database: Database, turns: int, *, prompts: bool, samples: bool, whole: bool) -> Size:
    """Writes the conversations; returns what the database grew by."""
    before = size_of(database)
    rollout_ids = make_rollouts(database)
    sampled = context = 0
    writer = SpanWriter(database)
    for seed, rollout in enumerate(rollout_ids):
        parent = None
        for draft in Agent(seed).turns(turns):
            assert draft.prompt_tokens is not None and draft.completion_tokens is not None
            count = len(draft.completion_tokens)
            sampled, last = sampled + count, len(draft.prompt_tokens)
            if not prompts:
                draft = replace(draft, prompt_tokens=None)
            if not samples:
                draft = replace(draft, completion_tokens=None, logprobs=None)
            draft = replace(draft, rollout_id=rollout, policy_id="p", engine_id="e", parent=parent)
            done = writer.submit(draft).result(60).parent
            parent = None if whole else done
        context += last + count
    writer.close()
    return Size(size_of(database) - before, sampled, context - sampled)


def make_rollouts(database: Database) -> list[str]:
    with database.begin() as conn:
        policies.put(
            conn, id="p", kind="train", model="m", sampling={}, group_size=1, rollouts_per_step=0, max_staleness=0,
            now=0.0,
        )  # fmt: skip
        values = {
            "id": "e",
            "policy_id": "p",
            "base_url": "http://127.0.0.1:1",
            "kind": "vllm",
            "state": "ready",
        }
        conn.execute(insert(Engine).values(**values, version=0, registered_at=0.0, seen_at=0.0))
        made = [
            groups.create_group(
                conn,
                id=None,
                policy_id="p",
                task={"payload": {}},
                size=1,
                purpose="train",
                deadline_at=1e12,
                now=0.0,
            )
            for _ in range(CONVERSATIONS)
        ]
        ids = [group.rollouts[0].id for group in made]
        for rollout in ids:
            rollouts.claim(conn, rollout, "runner", "command", 0.0)
    return ids


def size_of(database: Database) -> int:
    """Bytes on disk of the tables and their indexes; SQLite's file with its log folded in."""
    if database.is_sqlite:
        with database.engine.connect() as conn:
            conn.exec_driver_sql("COMMIT")
            conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
        return Path(str(database.url.database)).stat().st_size
    with database.read() as conn:
        query = "SELECT pg_total_relation_size('spans') + pg_total_relation_size('blobs')"
        return int(conn.execute(text(query)).scalar_one())


def fresh(server: str | None) -> Generator[Database]:
    """One database after the other, each new and empty; removed when the next is asked for."""
    while True:
        with tempfile.TemporaryDirectory() as folder:
            if server is None:
                database = open_database(f"sqlite:///{folder}/log.sqlite", migrate=True, durability="async")
                yield database
                database.close()
                continue
        name = f"singletree_storage_{uuid.uuid4().hex[:8]}"
        url = make_url(server)
        admin = create_engine(url.set(drivername="postgresql+psycopg"), isolation_level="AUTOCOMMIT")
        with admin.connect() as conn:
            conn.execute(text(f"CREATE DATABASE {name}"))
            try:
                own = url.set(database=name).render_as_string(hide_password=False)
                database = open_database(own, migrate=True, durability="async")
                yield database
                database.close()
            finally:
                conn.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        admin.dispose()


def measure(server: str | None) -> dict[str, Any]:
    """The figures for one kind of database."""
    databases = fresh(server)
    all_in, whole = [], []
    for turns in TURNS:
        all_in.append(write(next(databases), turns, prompts=True, samples=True, whole=False))
        whole.append(write(next(databases), turns, prompts=True, samples=True, whole=True))
    full = all_in[-1]
    none = write(next(databases), TURNS[-1], prompts=False, samples=False, whole=False)
    prompts = write(next(databases), TURNS[-1], prompts=True, samples=False, whole=False)
    databases.close()
    context = (prompts.bytes - none.bytes) / (full.context + full.sampled)
    sampled = (full.bytes - none.bytes - context * full.context) / full.sampled
    return {
        "bytes_per_sampled_token": round(sampled, 2),
        "bytes_per_context_token": round(context, 2),
        "bytes_per_token_all_in": round(full.bytes / (full.context + full.sampled), 2),
        "kilobytes_per_conversation": {
            turns: round(size.bytes / CONVERSATIONS / 1000) for turns, size in zip(TURNS, all_in, strict=True)
        },
        "kilobytes_stored_whole": {
            turns: round(size.bytes / CONVERSATIONS / 1000) for turns, size in zip(TURNS, whole, strict=True)
        },
        "growth_of_last_doubling": round(
            (all_in[-1].bytes - all_in[-2].bytes) / (all_in[-2].bytes - all_in[-3].bytes) / 2, 2
        ),
        "whole_over_delta": round(whole[-1].bytes / full.bytes, 1),
    }


def as_json() -> dict[str, float]:
    """Bytes that one conversation's arrays take as compact JSON, by kind of token: a yardstick for the figures above."""
    sampled = context = sampled_bytes = context_bytes = before = 0
    for draft in Agent(0).turns(TURNS[-1]):
        assert draft.prompt_tokens is not None and draft.completion_tokens is not None
        prompt, done = np.asarray(draft.prompt_tokens).tolist(), np.asarray(draft.completion_tokens).tolist()
        logprobs = np.asarray(draft.logprobs, np.float32).astype(float).round(8).tolist()
        context, context_bytes = context + len(prompt) - before, context_bytes + json_size(prompt[before:])
        sampled, sampled_bytes = sampled + len(done), sampled_bytes + json_size(done) + json_size(logprobs)
        before = len(prompt) + len(done)
    return {
        "bytes_per_sampled_token": round(sampled_bytes / sampled, 2),
        "bytes_per_context_token": round(context_bytes / context, 2),
    }


def json_size(values: list[Any]) -> int:
    return len(json.dumps(values, separators=(",", ":")))


def main() -> int:
    parser = argparse.ArgumentParser(description="Bytes of the span log per token and per turn.")
    parser.add_argument("--postgres", metavar="URL", help="a server on which databases may be created")
    server = parser.parse_args().postgres
    missed = False
    for name, url in [("SQLite", None)] + ([("PostgreSQL", server)] if server else []):
        figures = measure(url)
        print(f"{name}, {CONVERSATIONS} conversations")
        for label, value in figures.items():
            print(f"  {label.replace('_', ' '):<28} {value}")
        missed |= figures["bytes_per_sampled_token"] > BYTES_PER_SAMPLED_TOKEN
        missed |= figures["bytes_per_context_token"] > BYTES_PER_CONTEXT_TOKEN
    limits = f"{BYTES_PER_SAMPLED_TOKEN} per sampled, {BYTES_PER_CONTEXT_TOKEN} per context token"
    print(f"limits: {limits}: {'missed' if missed else 'met'}")
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
