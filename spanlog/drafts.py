"""A span before it is written, and the row it becomes. Pure: what the database knows is handed in.

Delivery and versions are decided at the commit, from the rollout's state and the swap clock as they are then.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from spanlog import delta
from spanlog.arrays import Ints, as_ints, encode_floats, encode_ints
from spanlog.blobs import blob_row
from spanlog.delta import NOTHING, Delta, Digests, Parent, shared_length
from spanlog.ids import new_id
from spanlog.states import ENDED_ROLLOUT_STATES, Delivery, SpanStatus
from spanlog.text import storable
from spanlog.versions import UNKNOWN, Swap, label_tokens

LATE = "late"
UNKNOWN_VERSION = "unknown_version"
UNSPECIFIED = "unspecified"


@dataclass(frozen=True)
class SpanDraft:
    """One model call as the proxy saw it. Arrays may be lists or numpy arrays."""

    rollout_id: str
    policy_id: str
    started_at: float
    ended_at: float
    request: bytes
    """The body as the harness sent it (JSON)."""
    reply: dict[str, Any] | bytes | None = None
    """Assistant message, finish reason, usage (JSON); null if there was none."""
    id: str = ""
    """Empty: made from ``started_at``."""
    engine_id: str | None = None
    dialect: str = "chat"
    mode: str = "observe"
    stream: bool = False
    status: str = SpanStatus.OK
    delivery: str = Delivery.SAMPLED
    trainable: bool = True
    untrainable_reason: str | None = None
    prompt_tokens: Sequence[int] | NDArray[np.integer] | None = None
    """The whole prompt's ids [p]. Null: the engine gave none."""
    completion_tokens: Sequence[int] | NDArray[np.integer] | None = None
    """Sampled ids [n], end of turn included."""
    logprobs: Sequence[float] | NDArray[np.floating] | None = None
    """[n], of the distribution that was sampled from."""
    received_at: Sequence[float] | NDArray[np.float64] | None = None
    """Unix seconds [n] at which each token came in; null for a reply that was not streamed."""
    parent: Parent | None = None
    """The committed span of the same rollout that this one is stored as a change of; null stores it whole."""
    fork_cause: str | None = None
    """Why the tokens do not extend the parent's; null: they do, or there is no parent."""
    fork_token: int | None = None
    """Position in the parent's tokens of the first that differs, where there was a fork."""
    thread: str | None = None
    """The harness's own label of the line of work."""
    hub: dict[str, Any] | None = None
    """The request as a chat completion; null: it is one."""
    context_hash: str | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    stripped: list[str] = field(default_factory=list)
    finish_reason: str | None = None
    stop_reason: str | None = None
    upstream_id: str | None = None
    http_status: int = 200
    error: dict[str, Any] | None = None
    first_token_at: float | None = None


@dataclass(frozen=True)
class SpanSummary:
    """What became of a draft, once it is committed."""

    id: str
    rollout_id: str
    delivery: str
    trainable: bool
    untrainable_reason: str | None
    version_low: Ints | None
    version_high: Ints | None
    oldest_version: int | None
    parent: Parent | None = field(default=None, repr=False, compare=False)
    """The span as the parent of others."""


@dataclass(frozen=True)
class EngineClock:
    """An engine's version and its swaps, read in one snapshot."""

    version: int | None
    swaps: Sequence[Swap]


@dataclass(frozen=True)
class EncodedSpan:
    """A draft whose arrays and blobs are bytes: all that can be done, and fail, before the transaction."""

    draft: SpanDraft
    row: dict[str, Any]
    """Columns of ``spans`` that do not depend on the database's state."""
    blobs: list[dict[str, Any]]
    count: int | None
    """Completion tokens; null if the engine gave none."""
    parent: Parent
    """The span as the parent of others, once it is committed."""


def encode_draft(draft: SpanDraft) -> EncodedSpan:
    """Arrays and blobs to bytes. Raises ValueError where lengths or values cannot be right."""
    count = None if draft.completion_tokens is None else len(draft.completion_tokens)
    for name in ("logprobs", "received_at"):
        values = getattr(draft, name)
        if values is not None and len(values) != count:
            raise ValueError(f"{len(values)} {name} for {count} completion tokens")
    span_id = draft.id or new_id("spn", draft.started_at)
    parent = draft.parent
    if parent is not None and (parent.rollout_id != draft.rollout_id or parent.id == span_id):
        parent = None  # rollouts are read one by one: nothing of another's may be needed
    prompt = None if draft.prompt_tokens is None else as_ints(draft.prompt_tokens)
    done = None if draft.completion_tokens is None else as_ints(draft.completion_tokens)
    shared = 0
    if parent is not None and parent.tokens is not None and prompt is not None:
        shared = shared_length(parent.tokens, prompt)
    blobs = BlobRows()
    row = {name: getattr(draft, name) for name in COPIED}
    row |= {
        "id": span_id,
        "parent_id": parent.id if parent else None,
        "thread": storable(draft.thread),
        "stripped": list(draft.stripped),
        "error": storable(draft.error),
        "stop_reason": storable(draft.stop_reason),
        "finish_reason": storable(draft.finish_reason),
        "shared_tokens": shared,
        "prompt_tokens": None if prompt is None else encode_ints(prompt[shared:]),
        "completion_tokens": None if done is None else encode_ints(done),
        "logprobs": None if draft.logprobs is None else encode_floats(draft.logprobs),
        "prompt_count": 0 if prompt is None else prompt.size,
        "completion_count": count or 0,
        "reply_hash": blobs.add(
            draft.reply if isinstance(draft.reply, bytes | None) else to_json(draft.reply)
        ),
    }
    request, columns = encode_request(draft, parent, blobs)
    row |= columns
    hub, columns = encode_hub(draft, request, parent, blobs)
    row |= columns
    tokens = prompt if done is None or prompt is None else np.concatenate([prompt, done])
    return EncodedSpan(draft, row, blobs.rows, count, Parent(span_id, draft.rollout_id, tokens, request, hub))


class BlobRows:
    """The rows of ``blobs`` that a span needs."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []

    def add(self, data: bytes | None) -> str | None:
        """Adds a document; returns its hash."""
        if data is None:
            return None
        self.rows.append(blob_row(data))
        return self.rows[-1]["hash"]


def encode_request(
    draft: SpanDraft, parent: Parent | None, blobs: BlobRows
) -> tuple[Digests, dict[str, Any]]:
    """What children compare their requests with, and the columns. The request is whole where it is no change [I5]."""
    document = delta.parse(draft.request)
    try:
        change = (
            None
            if document is None
            else delta.encode(document, parent.request if parent else NOTHING, named=True)
        )
    except ValueError:
        change = None
    columns: dict[str, Any] = {"history_key": change.key if change else None}
    columns["request_hash"] = blobs.add(change.patch if change else draft.request)
    return (change.digests if change else NOTHING), columns | change_columns("", change, blobs)


def encode_hub(
    draft: SpanDraft, request: Digests, parent: Parent | None, blobs: BlobRows
) -> tuple[Digests, dict[str, Any]]:
    """The same for the request in hub terms. Raises ValueError if that is no JSON value."""
    if draft.hub is None:
        return request, {"hub_hash": None} | change_columns("hub_", None, blobs)
    change = delta.encode(delta.take_apart(draft.hub), parent.hub if parent else NOTHING, named=False)
    return change.digests, {"hub_hash": blobs.add(change.patch)} | change_columns("hub_", change, blobs)


def change_columns(prefix: str, change: Delta | None, blobs: BlobRows) -> dict[str, Any]:
    return {
        f"{prefix}shared_messages": change.shared if change else 0,
        f"{prefix}messages_delta": blobs.add(change.items if change else None),
        f"{prefix}tools_hash": blobs.add(change.tools if change else None),
    }


COPIED = (
    "rollout_id", "policy_id", "engine_id", "dialect", "mode", "stream", "status", "fork_cause",
    "fork_token", "context_hash", "sampling", "upstream_id", "http_status", "started_at", "first_token_at", "ended_at",
)  # fmt: skip
"""Columns that take the draft's field as it is."""


def to_json(value: Any) -> bytes:
    """Compact JSON in UTF-8; lone surrogates, which have none, stay escaped. NaN, which is no JSON, becomes null."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return ASCII_JSON.encode(value).encode()


ASCII_JSON = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def finish_row(
    span: EncodedSpan, rollout_state: str, clock: EngineClock | None, guard_s: float
) -> tuple[dict[str, Any], SpanSummary]:
    """The whole row and its summary: late if the rollout has ended, versions from the swap clock [I2]."""
    draft = span.draft
    low, high = span_versions(span, clock, guard_s)
    low_bytes = None if low is None else encode_ints(low)
    late = rollout_state in ENDED_ROLLOUT_STATES
    reason = None if draft.trainable else draft.untrainable_reason or UNSPECIFIED
    if late:
        reason = LATE
    elif reason is None and low is not None and bool((low < 0).any()):
        reason = UNKNOWN_VERSION
    oldest = int(low.min()) if low is not None and low.size and int(low.min()) >= 0 else None
    delivery = Delivery.LATE if late else draft.delivery
    row = span.row | {
        "delivery": delivery,
        "trainable": reason is None,
        "untrainable_reason": reason,
        "version_low": low_bytes,
        "version_high": low_bytes if high is None or high is low else encode_ints(high),
        "oldest_version": oldest,
    }
    summary = SpanSummary(
        row["id"], draft.rollout_id, delivery, reason is None, reason, low, high, oldest, span.parent
    )
    return row, summary


def span_versions(
    span: EncodedSpan, clock: EngineClock | None, guard_s: float
) -> tuple[Ints | None, Ints | None]:
    """Versions of the completion tokens; null without tokens."""
    if span.count is None:
        return None, None
    if clock is None:
        unknown = np.full(span.count, UNKNOWN, np.int32)
        return unknown, unknown
    if not clock.swaps:
        version = np.full(span.count, UNKNOWN if clock.version is None else clock.version, np.int32)
        return version, version
    draft = span.draft
    received = None if draft.received_at is None else np.asarray(draft.received_at, np.float64)
    return label_tokens(
        received, draft.started_at, draft.ended_at, clock.swaps, clock.version, guard_s, count=span.count
    )
