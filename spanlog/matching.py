"""Finding the recorded turn that a request continues, whichever process recorded it: one query, then a pure choice."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select, tuple_

from spanlog.blobs import unpack
from spanlog.canonical import call_ids, canonical_calls, is_reply, reply_reasoning, reply_text
from spanlog.models import Blob, Span
from spanlog.states import Delivery, SpanStatus

FIRST = 8
"""Replies asked for first: nearly always the last one was recorded. Only where none of these was, the others are."""
LAST = 1000
"""Replies asked for at most: databases bound the number of parameters."""


@dataclass(frozen=True, slots=True)
class Echo:
    """What a reply is told by beside its hash, as it was sampled or as a request's history repeats it."""

    ids: frozenset[str] = frozenset()
    """Of its tool calls."""
    text: str | None = None
    """Canonical; null if there is none."""
    reasoning: str | None = None
    """Null if there is none."""
    calls: bool = False
    """Whether it has tool calls: then the hash says nothing of its text."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A recorded turn whose history and reply have a hash that was looked for."""

    id: str
    context_hash: str
    reply: Echo
    """As it was sampled."""
    ended_at: float
    finish_reason: str | None
    stop_reason: str | None


def read_echo(message: Mapping[str, Any]) -> Echo:
    """Of an assistant's message."""
    calls = bool(canonical_calls(message))
    return Echo(frozenset(call_ids(message)), reply_text(message), reply_reasoning(message), calls)


def echoed(messages: Sequence[Mapping[str, Any]]) -> list[Echo]:
    """The replies in a hub request's history, the last one first."""
    return [read_echo(message) for message in reversed(messages) if is_reply(message)]


Wanted = tuple[str, Sequence[str]]
"""A rollout and context hashes, those of the longest history first."""


def find_candidates(conn: Connection, wanted: Sequence[Wanted]) -> list[list[Candidate]]:
    """For each of ``wanted``: turns of the rollout with one of these context hashes that can be continued.

    Those are replies that went well, in time, whose tokens are known. One query for all; another for each
    of whose ``FIRST`` hashes none was recorded.
    """
    found = _find(conn, [(rollout, hashes[:FIRST]) for rollout, hashes in wanted])
    for place, (rollout, hashes) in enumerate(wanted):
        if not found[place] and len(hashes) > FIRST:
            found[place] = _find(conn, [(rollout, hashes[FIRST:LAST])])[0]
    return found


# Built once: building it costs more than running it.
_QUERY = (
    select(
        Span.rollout_id,
        Span.id,
        Span.context_hash,
        Span.ended_at,
        Span.finish_reason,
        Span.stop_reason,
        Blob.codec,
        Blob.data,
    )
    .outerjoin(Blob, Blob.hash == Span.reply_hash)
    .where(
        tuple_(Span.rollout_id, Span.context_hash).in_(bindparam("wanted", expanding=True)),
        Span.status == SpanStatus.OK,
        Span.delivery.not_in((Delivery.LATE, Delivery.ABORTED)),
        Span.prompt_tokens.is_not(None),
        Span.completion_tokens.is_not(None),
    )
)


def _find(conn: Connection, wanted: Sequence[Wanted]) -> list[list[Candidate]]:
    asked = {(rollout, hash) for rollout, hashes in wanted for hash in hashes}
    by_hash: dict[tuple[str, str], list[Candidate]] = {}
    if asked:
        for row in conn.execute(_QUERY, {"wanted": list(asked)}):
            by_hash.setdefault((row.rollout_id, row.context_hash), []).append(_candidate(row))
    return [
        [one for hash in hashes for one in by_hash.get((rollout, hash), ())] for rollout, hashes in wanted
    ]


def _candidate(row: Any) -> Candidate:
    reply = None if row.data is None else json.loads(unpack(row.codec, row.data))
    message = (reply or {}).get("message") or {}
    echo = read_echo(message) if message else Echo()
    return Candidate(row.id, row.context_hash, echo, row.ended_at, row.finish_reason, row.stop_reason)


def choose(
    candidates: Sequence[Candidate], hashes_longest_first: Sequence[str], echoes: Sequence[Echo]
) -> Candidate | None:
    """The turn with the longest history; null if there is none.

    ``hashes_longest_first`` and ``echoes`` are the request's, one of each for every reply in its history. Of turns with
    one hash (a call and its retry, two samples of one prompt) the one whose tool call ids are echoed; then whose text
    is; then whose reasoning is; then the one that ended last, then by id, so that every process chooses the same.
    """
    by_hash: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_hash.setdefault(candidate.context_hash, []).append(candidate)
    for hash, echo in zip(hashes_longest_first, echoes, strict=True):
        equal = [found for found in by_hash.get(hash, ()) if is_unaltered(found.reply, echo)]
        if equal:
            return max(equal, key=lambda found: (*likeness(found.reply, echo), found.ended_at, found.id))
    return None


def is_unaltered(said: Echo, echo: Echo) -> bool:
    """Whether the reply can have been echoed thus: text beside a tool call is repeated, or dropped."""
    return not echo.calls or echo.text is None or echo.text == said.text


def likeness(said: Echo, echo: Echo) -> tuple[int, bool, bool]:
    """How much beside the hash speaks for a turn with this reply; greater is more."""
    same_reasoning = echo.reasoning is not None and echo.reasoning == said.reasoning
    return len(echo.ids & said.ids), echo.text == said.text, same_reasoning
