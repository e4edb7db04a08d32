"""Reading spans back: rows as Python objects, with arrays, request and reply decoded."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, select
from sqlalchemy.orm import aliased

from spanlog.arrays import Floats, Ints, decode_floats, decode_ints
from spanlog.blobs import unpack
from spanlog.models import Blob, Span

CHUNK = 500
"""Rollouts a query: SQLite and PostgreSQL both bound the number of parameters."""


@dataclass(frozen=True)
class SpanRecord:
    """One model call as it was committed. Arrays are null where the engine gave none."""

    id: str
    rollout_id: str
    policy_id: str
    engine_id: str | None
    dialect: str
    mode: str
    stream: bool
    status: str
    delivery: str
    trainable: bool
    untrainable_reason: str | None
    parent_id: str | None
    fork_cause: str | None
    fork_token: int | None
    thread: str | None
    shared_tokens: int
    prompt_tokens: Ints | None
    """The whole prompt, int32 [prompt_count]: the parent's part included."""
    completion_tokens: Ints | None
    """int32 [n]."""
    logprobs: Floats | None
    """float32 [n]."""
    version_low: Ints | None
    """int32 [n]; -1 where unknown [I2]."""
    version_high: Ints | None
    oldest_version: int | None
    request: Any
    """The body as the harness sent it, a JSON value; null if it was no JSON."""
    hub: dict[str, Any]
    """The request as a chat completion: the body itself where it is one; empty if it was no JSON."""
    reply: dict[str, Any] | None
    context_hash: str | None
    sampling: dict[str, Any]
    stripped: list[Any]
    finish_reason: str | None
    stop_reason: str | None
    upstream_id: str | None
    http_status: int
    error: dict[str, Any] | None
    started_at: float
    first_token_at: float | None
    ended_at: float


PLAIN = (
    "id", "rollout_id", "policy_id", "engine_id", "dialect", "mode", "stream", "status", "delivery", "trainable",
    "untrainable_reason", "parent_id", "fork_cause", "fork_token", "thread", "shared_tokens", "oldest_version", "context_hash", "sampling", "stripped",
    "finish_reason", "stop_reason", "upstream_id", "http_status", "error", "started_at", "first_token_at", "ended_at",
)  # fmt: skip
"""Columns that a record takes as they are."""


def read_spans(conn: Connection, rollout_ids: Collection[str]) -> dict[str, list[SpanRecord]]:
    """The spans of these rollouts, each rollout's in order of id; rollouts without any are left out."""
    wanted = list(dict.fromkeys(rollout_ids))
    spans: dict[str, list[SpanRecord]] = {}
    for start in range(0, len(wanted), CHUNK):
        records: dict[str, SpanRecord] = {}
        for row in query_spans(conn, wanted[start : start + CHUNK]):
            record = read_row(row, records)
            records[record.id] = record
            spans.setdefault(record.rollout_id, []).append(record)
    return spans


def query_spans(conn: Connection, rollout_ids: list[str]) -> list[Row[Any]]:
    """Rows of ``spans`` with both blobs: one query."""
    request, reply, hub = aliased(Blob), aliased(Blob), aliased(Blob)
    query = (
        select(
            *Span.__table__.columns,
            request.codec.label("request_codec"),
            request.data.label("request_data"),
            reply.codec.label("reply_codec"),
            reply.data.label("reply_data"),
            hub.codec.label("hub_codec"),
            hub.data.label("hub_data"),
        )
        .outerjoin(request, request.hash == Span.request_hash)
        .outerjoin(reply, reply.hash == Span.reply_hash)
        .outerjoin(hub, hub.hash == Span.hub_hash)
        .where(Span.rollout_id.in_(rollout_ids))
        .order_by(Span.id)
    )
    return list(conn.execute(query))


def read_row(row: Row[Any], earlier: dict[str, SpanRecord]) -> SpanRecord:
    """One row decoded; a parent comes before its children, in ``earlier``."""
    fields = row._mapping
    request = None
    if row.request_data is not None:
        with contextlib.suppress(ValueError):
            request = json.loads(unpack(row.request_codec, row.request_data))
    hub = request if row.hub_data is None else json.loads(unpack(row.hub_codec, row.hub_data))
    return SpanRecord(
        **{name: fields[name] for name in PLAIN},
        prompt_tokens=whole_prompt(row, earlier),
        completion_tokens=ints(row.completion_tokens),
        logprobs=None if row.logprobs is None else decode_floats(row.logprobs),
        version_low=ints(row.version_low),
        version_high=ints(row.version_high),
        request=request,
        hub=hub if isinstance(hub, dict) else {},
        reply=None if row.reply_data is None else json.loads(unpack(row.reply_codec, row.reply_data)),
    )


def whole_prompt(row: Row[Any], earlier: dict[str, SpanRecord]) -> Ints | None:
    """The prompt with its parent's tokens in front [I5]. Raises ValueError if the parent cannot give them."""
    own = ints(row.prompt_tokens)
    if own is None or row.shared_tokens == 0:
        return own
    parent = earlier.get(row.parent_id)
    if parent is None or parent.prompt_tokens is None or parent.completion_tokens is None:
        raise ValueError(
            f"span {row.id} shares {row.shared_tokens} tokens with {row.parent_id}, which has none"
        )
    history = np.concatenate([parent.prompt_tokens, parent.completion_tokens])
    if history.size < row.shared_tokens:
        raise ValueError(f"span {row.id} shares more tokens with {row.parent_id} than that one has")
    return np.concatenate([history[: row.shared_tokens], own])


def ints(data: bytes | None) -> Ints | None:
    """An integer array, or null."""
    return None if data is None else decode_ints(data)
