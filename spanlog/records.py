"""Reading spans back: rows as Python objects, with arrays, request and reply decoded, and deltas resolved [I5]."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from sqlalchemy import Connection, Row, literal, select
from sqlalchemy.orm import aliased

from spanlog.arrays import Floats, Ints, decode_floats, decode_ints
from spanlog.blobs import unpack
from spanlog.delta import Parent, digest_document
from spanlog.models import Blob, Span
from spanlog.stored import Change, Packed, Stored

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
    stored_request: Stored = field(repr=False, compare=False)
    stored_hub: Stored = field(repr=False, compare=False)

    @cached_property
    def request(self) -> Any:
        """The body as the harness sent it, a JSON value, put together when it is first asked for; null if it was no
        JSON. Parts of it are shared with other records: do not change it."""
        return self.stored_request.value()

    @cached_property
    def hub(self) -> dict[str, Any]:
        """The request as a chat completion: the body itself where it is one; empty if it was no JSON."""
        value = self.request if self.stored_hub is self.stored_request else self.stored_hub.value()
        return value if isinstance(value, dict) else {}


PLAIN = (
    "id", "rollout_id", "policy_id", "engine_id", "dialect", "mode", "stream", "status", "delivery", "trainable",
    "untrainable_reason", "parent_id", "fork_cause", "fork_token", "thread", "shared_tokens", "oldest_version",
    "context_hash", "sampling", "stripped", "finish_reason", "stop_reason", "upstream_id", "http_status", "error",
    "started_at", "first_token_at", "ended_at",
)  # fmt: skip
"""Columns that a record takes as they are."""
BLOBS = (
    "request_hash", "reply_hash", "messages_delta", "tools_hash", "hub_hash", "hub_messages_delta", "hub_tools_hash",
)  # fmt: skip
"""Columns that name a blob."""


def read_spans(conn: Connection, rollout_ids: Collection[str]) -> dict[str, list[SpanRecord]]:
    """The spans of these rollouts, each rollout's in order of id; rollouts without any are left out."""
    wanted = list(dict.fromkeys(rollout_ids))
    spans: dict[str, list[SpanRecord]] = {}
    for start in range(0, len(wanted), CHUNK):
        query = span_query().where(Span.rollout_id.in_(wanted[start : start + CHUNK])).order_by(Span.id)
        rows = list(conn.execute(query))
        records: dict[str, SpanRecord] = {}
        for row in parents_first(rows):
            parent = records.get(row.parent_id)
            before = None if parent is None else history_tokens(parent)
            records[row.id] = read_row(row, whole_prompt(row, before), *stored_after(row, parent))
        for row in rows:
            spans.setdefault(row.rollout_id, []).append(records[row.id])
    return spans


def read_chain(conn: Connection, span_id: str) -> SpanRecord | None:
    """One span with its whole prompt, request and hub, its ancestors read in the same query; null if it is not there.

    Costs as much as the conversation is long, not its square.
    """
    chain = select(Span.id, Span.parent_id, literal(0).label("depth")).where(Span.id == span_id)
    line = chain.cte(recursive=True)
    line = line.union_all(
        select(Span.id, Span.parent_id, line.c.depth + 1).join(line, Span.id == line.c.parent_id)
    )
    rows = list(conn.execute(span_query().join(line, line.c.id == Span.id).order_by(line.c.depth.desc())))
    if not rows:
        return None
    request, hub = stored(rows[0], None, None)
    for row in rows[1:]:
        request, hub = stored(row, request, hub)
    return read_row(rows[-1], chain_prompt(rows), request, hub)


def read_parent(conn: Connection, span_id: str) -> Parent | None:
    """A committed span as the parent of others, its chain read with one query; null if it is not there."""
    record = read_chain(conn, span_id)
    return None if record is None else parent_of_record(record)


def parent_of_record(record: SpanRecord) -> Parent:
    """A span that was read, as the parent of others."""
    request = digest_document(record.stored_request.document())
    same = record.stored_hub is record.stored_request
    hub = request if same else digest_document(record.stored_hub.document())
    return Parent(record.id, record.rollout_id, history_tokens(record), request, hub)


def span_query() -> Any:
    """Rows of ``spans`` with their blobs, as ``COLUMN_codec`` and ``COLUMN_data``."""
    columns: list[Any] = list(Span.__table__.columns)
    source: Any = Span.__table__
    for name in BLOBS:
        blob = aliased(Blob)
        source = source.outerjoin(blob, blob.hash == getattr(Span, name))
        columns += [blob.codec.label(f"{name}_codec"), blob.data.label(f"{name}_data")]
    return select(*columns).select_from(source)


def parents_first(rows: Sequence[Row[Any]]) -> Iterator[Row[Any]]:
    """The rows, none before its parent. Ids alone do not see to it: two proxies' clocks may differ."""
    waiting = {row.id: row for row in rows}
    for row in rows:
        line = []
        while row is not None and waiting.pop(row.id, None) is not None:
            line.append(row)
            row = waiting.get(row.parent_id)
        yield from reversed(line)


def read_row(row: Row[Any], prompt: Ints | None, request: Stored, hub: Stored) -> SpanRecord:
    """One row decoded, but for what is read from its parent as well."""
    fields = row._mapping
    reply = packed(row, "reply_hash")
    return SpanRecord(
        **{name: fields[name] for name in PLAIN},
        prompt_tokens=prompt,
        completion_tokens=ints(row.completion_tokens),
        logprobs=None if row.logprobs is None else decode_floats(row.logprobs),
        version_low=ints(row.version_low),
        version_high=ints(row.version_high),
        reply=None if reply is None else json.loads(unpack(*reply)),
        stored_request=request,
        stored_hub=hub,
    )


def stored(row: Row[Any], request: Stored | None, hub: Stored | None) -> tuple[Stored, Stored]:
    """The row's request and hub, given its parent's."""
    own = packed(row, "request_hash")
    if row.history_key is None or own is None:
        new = Stored(whole=own)
    else:
        change = Change(
            row.history_key,
            own,
            row.shared_messages,
            packed(row, "messages_delta"),
            packed(row, "tools_hash"),
        )
        new = Stored(before=request, change=change)
    own = packed(row, "hub_hash")
    if own is None:
        return new, new
    change = Change(
        None, own, row.hub_shared_messages, packed(row, "hub_messages_delta"), packed(row, "hub_tools_hash")
    )
    return new, Stored(before=hub, change=change)


def stored_after(row: Row[Any], parent: SpanRecord | None) -> tuple[Stored, Stored]:
    if parent is None:
        return stored(row, None, None)
    return stored(row, parent.stored_request, parent.stored_hub)


def packed(row: Row[Any], name: str) -> Packed | None:
    """The blob that a column names."""
    fields = row._mapping
    data = fields[f"{name}_data"]
    return None if data is None else (fields[f"{name}_codec"], data)


def whole_prompt(row: Row[Any], before: Ints | None) -> Ints | None:
    """The prompt with its parent's tokens ``before`` in front. Raises ValueError if the parent cannot give them."""
    own = ints(row.prompt_tokens)
    if own is None or row.shared_tokens == 0:
        return own
    if before is None or before.size < row.shared_tokens:
        raise ValueError(missing(row))
    return np.concatenate([before[: row.shared_tokens], own])


def chain_prompt(rows: Sequence[Row[Any]]) -> Ints | None:
    """The last row's prompt; each row is the parent of the next. Every token is copied once."""
    history, length = np.empty(max(row.prompt_count + row.completion_count for row in rows), np.int32), 0
    for row in rows:
        own = ints(row.prompt_tokens)
        if own is None:
            length = 0
            continue
        if row.shared_tokens > length:
            raise ValueError(missing(row))
        history[row.shared_tokens : row.prompt_count] = own
        length = row.prompt_count
        if (completion := ints(row.completion_tokens)) is not None:
            length += completion.size
            history[row.prompt_count : length] = completion
    last = rows[-1]
    return None if last.prompt_tokens is None else history[: last.prompt_count].copy()


def history_tokens(span: SpanRecord) -> Ints | None:
    """Prompt and completion: what a child's prompt may begin with."""
    if span.prompt_tokens is None or span.completion_tokens is None:
        return span.prompt_tokens
    return np.concatenate([span.prompt_tokens, span.completion_tokens])


def missing(row: Row[Any]) -> str:
    return f"span {row.id} shares {row.shared_tokens} tokens with {row.parent_id}, which has not as many"


def ints(data: bytes | None) -> Ints | None:
    """An integer array, or null."""
    return None if data is None else decode_ints(data)
