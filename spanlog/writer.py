"""The one writer of spans in a process: a future resolves only after the commit that made its span durable [I3].

Group commit: what queued during the last commit goes into the next, so that a lone call pays one commit and a thousand at
once share a few. Only after a large batch, when calls come faster than commits, is there a pause to let more of them
come together: a commit costs the same for one and for many. Within the commit, rollout states and the swap clock are read, so that a span knows
whether it came late and which weights sampled it [I2]. A draft that cannot be written fails alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection, bindparam, func, select
from sqlalchemy.exc import DBAPIError, StatementError

from spanlog.bulk import insert_rows
from spanlog.database import Database
from spanlog.drafts import (
    EncodedSpan,
    EngineClock,
    SpanDraft,
    SpanSummary,
    encode_draft,
    finish_row,
)
from spanlog.errors import DatabaseUnreachable, NotFound, SpanlogError, TransactionLost, WriterClosed
from spanlog.models import Blob, Engine, EngineSwap, Rollout, Span

__all__ = ["SpanDraft", "SpanSummary", "SpanWriter"]

MAX_BATCH = 256
"""Spans a commit: bounds the time for which the write lock is held."""

GUARD_S = 0.05
"""How long after a swap's end a token may come that waited in a buffer since before its begin [I2]."""


LARGE_BATCH = 3
"""Spans of a commit after which the writer pauses."""
PAUSE_S = 0.01

Waiting = Future[SpanSummary] | asyncio.Future[SpanSummary]


@dataclass(frozen=True)
class Job:
    """An encoded span, or why it could not be encoded, and whoever waits for it."""

    span: EncodedSpan | None
    future: Waiting


class SpanWriter:
    """Writes spans from one thread of its own. ``submit`` from any thread; never blocks."""

    def __init__(self, database: Database, *, guard_s: float = GUARD_S, max_batch: int = MAX_BATCH) -> None:
        self.database = database
        self.guard_s = guard_s
        self.max_batch = max_batch
        self._queue: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._submit_lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="span-writer", daemon=True)
        self._thread.start()

    @property
    def queue_depth(self) -> int:
        """Spans that wait for a commit, those in the running one not counted."""
        return self._queue.qsize()

    def submit(self, draft: SpanDraft) -> Future[SpanSummary]:
        """Queue a span. The future resolves after its commit, or fails with why it could not be written.

        The draft is encoded here, by the caller's thread. Raises WriterClosed. Failures: ValueError (the draft), NotFound
        (no such rollout), DatabaseLocked and its kin.
        """
        future: Future[SpanSummary] = Future()
        self._put(draft, future)
        return future

    async def write(self, draft: SpanDraft) -> SpanSummary:
        """The same, awaited: all coroutines that wait for one commit are woken at once. Raises what ``submit`` raises
        and its future fails with."""
        future: asyncio.Future[SpanSummary] = asyncio.get_running_loop().create_future()
        self._put(draft, future)
        return await future

    def _put(self, draft: SpanDraft, future: Waiting) -> None:
        try:
            span = encode_draft(draft)
        except Exception as error:
            tell(future, error)
            return
        with self._submit_lock:
            if self._closed:
                raise WriterClosed("the span writer is closed: the proxy is shutting down")
            self._queue.put(Job(span, future))

    def drain(self, timeout_s: float | None = None) -> None:
        """Wait until everything submitted so far is committed or has failed. Raises TimeoutError."""
        marker: Future[SpanSummary] = Future()
        with self._submit_lock:
            if self._closed:
                return
            self._queue.put(Job(None, marker))
        marker.result(timeout_s)

    def close(self, timeout_s: float | None = None) -> None:
        """Commit what is queued, then stop; safe to call twice. Raises TimeoutError if that takes too long."""
        with self._submit_lock:
            if not self._closed:
                self._closed = True
                self._queue.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"{self.queue_depth} spans are still not committed after {timeout_s} s")

    def _run(self) -> None:
        while True:
            jobs = [self._queue.get()]
            while len(jobs) < self.max_batch and jobs[-1] is not None:
                try:
                    jobs.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            batch = [job for job in jobs if job is not None and job.span is not None]
            if batch:
                self._write_batch(batch)
            settle([(job.future, EMPTY) for job in jobs if job is not None and job.span is None])
            if jobs[-1] is None:
                return
            if len(batch) >= LARGE_BATCH:
                time.sleep(PAUSE_S)

    def _write_batch(self, jobs: list[Job]) -> None:
        """Write the jobs and settle every future, whatever happens."""
        jobs = parents_first(jobs)
        spans = [job.span for job in jobs if job.span is not None]
        results: Sequence[SpanSummary | BaseException]
        try:
            results = write_spans(self.database, spans, self.guard_s)
        except BaseException as error:
            results = [error] * len(jobs)
        settle([(job.future, result) for job, result in zip(jobs, results, strict=True)])


def parents_first(jobs: list[Job]) -> list[Job]:
    """The jobs in their order, but a span never before its parent, where both are among them."""
    waiting = {job.span.row["id"]: job for job in jobs if job.span is not None}
    if not any(parent_of(job) in waiting for job in jobs):
        return jobs
    ordered: dict[int, Job] = {}
    for job in jobs:
        line = [job]
        while (parent := parent_of(line[-1])) is not None and (before := waiting.pop(parent, None)):
            line.append(before)
        ordered |= {id(job): job for job in reversed(line) if id(job) not in ordered}
    return list(ordered.values())


def parent_of(job: Job) -> str | None:
    """Id of the span that the job's is stored as a change of."""
    return None if job.span is None else job.span.row["parent_id"]


EMPTY = SpanSummary("", "", "", False, None, None, None, None)
"""What ``drain`` is told."""


def write_spans(
    database: Database, spans: list[EncodedSpan], guard_s: float
) -> list[SpanSummary | Exception]:
    """Commit the spans; returns for each its summary, or why it alone failed.

    First all at once. If a row is refused, or another transaction won, the whole is rolled back and each is tried under
    a savepoint, whole if its parent is not there. If the connection broke, the commit may or may not have happened: what is there already is left, the
    rest is written.
    Raises DatabaseLocked, DatabaseUnwritable, DatabaseUnreachable: nothing was written.
    """
    try:
        with database.begin() as conn:
            return insert_batch(conn, spans, guard_s)
    except DatabaseUnreachable:
        with database.begin() as conn:
            return insert_one_by_one(conn, spans, guard_s, again=True)
    except (TransactionLost, StatementError, UnicodeError, OverflowError, ValueError, TypeError):
        with database.begin() as conn:
            return insert_one_by_one(conn, spans, guard_s, again=False)


def insert_batch(conn: Connection, spans: list[EncodedSpan], guard_s: float) -> list[SpanSummary | Exception]:
    """Insert the spans, their blobs first."""
    states = read_states(conn, spans)
    clocks = read_clocks(conn, spans)
    results: list[SpanSummary | Exception] = []
    rows, blobs = [], {}
    for span in spans:
        state = states.get(span.draft.rollout_id)
        if state is None:
            results.append(NotFound(f"no rollout {span.draft.rollout_id}"))
            continue
        row, summary = finish_row(span, state, clocks.get(span.draft.engine_id), guard_s)
        rows.append(row)
        results.append(summary)
        blobs |= {blob["hash"]: blob for blob in span.blobs}
    if rows:
        insert_rows(conn, Blob, [blobs[digest] for digest in sorted(blobs)], ignore=True)
        insert_rows(conn, Span, rows)
    return results


def insert_one_by_one(
    conn: Connection, spans: list[EncodedSpan], guard_s: float, again: bool
) -> list[SpanSummary | Exception]:
    """``insert_batch`` for each span under its own savepoint. ``again``: leave alone what an earlier try committed."""
    there: set[str] = set()
    if again:
        query = select(Span.id).where(Span.id.in_([span.row["id"] for span in spans]))
        there = set(conn.execute(query).scalars())
    results: list[SpanSummary | Exception] = []
    for span in spans:
        if span.row["id"] in there:
            results.append(replace(read_summary(conn, span.row["id"]), parent=span.parent))
            continue
        if not has_parent(conn, span):
            span = encode_draft(replace(span.draft, id=span.row["id"], parent=None))
        try:
            with conn.begin_nested():
                (result,) = insert_batch(conn, [span], guard_s)
            results.append(result)  # after the savepoint's release, which can still refuse the row
        except (StatementError, UnicodeError, OverflowError, ValueError, TypeError) as error:
            if isinstance(error, DBAPIError) and error.connection_invalidated:
                raise
            results.append(refusal(span, error))
    return results


def has_parent(conn: Connection, span: EncodedSpan) -> bool:
    """Whether the span can be stored as a change: what it changes is there [I5]."""
    parent = span.row["parent_id"]
    return (
        parent is None
        or conn.execute(select(Span.id).where(Span.id == parent)).scalar_one_or_none() is not None
    )


def refusal(span: EncodedSpan, error: Exception) -> SpanlogError:
    """Why one span was refused, in one line."""
    cause = getattr(error, "orig", None) or error
    reason = next(iter(str(cause).splitlines()), type(cause).__name__)
    refused = SpanlogError(f"span {span.row['id']} was refused by the database: {reason}")
    refused.__cause__ = error
    return refused


# Built once: building a statement costs more than running it.
STATES = (
    select(Rollout.id, Rollout.state)
    .where(Rollout.id.in_(bindparam("ids", expanding=True)))
    .order_by(Rollout.id)
    .with_for_update(read=True)
)
ENGINES = (
    select(Engine.id)
    .where(Engine.id.in_(bindparam("ids", expanding=True)))
    .order_by(Engine.id)
    .with_for_update(read=True)
)
LAST_BEFORE = (
    select(func.coalesce(func.max(EngineSwap.begin_at), bindparam("since")))
    .where(EngineSwap.engine_id == bindparam("engine"), EngineSwap.begin_at <= bindparam("since"))
    .scalar_subquery()
)
CLOCK = (
    select(Engine.version, *EngineSwap.__table__.columns[2:])
    .outerjoin(EngineSwap, (EngineSwap.engine_id == Engine.id) & (EngineSwap.begin_at >= LAST_BEFORE))
    .where(Engine.id == bindparam("engine"))
    .order_by(EngineSwap.begin_at)
)


def read_states(conn: Connection, spans: list[EncodedSpan]) -> dict[str, str]:
    """States of the rollouts, share-locked: none can end between this and the commit."""
    ids = {span.draft.rollout_id for span in spans}
    return {row.id: row.state for row in conn.execute(STATES, {"ids": list(ids)})}


def read_clocks(conn: Connection, spans: list[EncodedSpan]) -> dict[str | None, EngineClock]:
    """Version and swaps of the engines, from the last swap that began before the spans did.

    Engines are share-locked first, and read with their swaps in one statement: one snapshot.
    """
    since: dict[str, float] = {}
    for span in spans:
        if span.draft.engine_id is not None and span.count is not None:
            since[span.draft.engine_id] = min(
                span.draft.started_at, since.get(span.draft.engine_id, span.draft.started_at)
            )
    if not since:
        return {}
    if conn.dialect.name != "sqlite":
        conn.execute(ENGINES, {"ids": list(since)})
    return {engine_id: read_clock(conn, engine_id, moment) for engine_id, moment in since.items()}


def read_clock(conn: Connection, engine_id: str, since: float) -> EngineClock:
    """One engine's clock from the last swap that began before ``since``; an engine that is gone has no version."""
    rows: list[Any] = list(conn.execute(CLOCK, {"engine": engine_id, "since": since}))
    version = rows[0].version if rows else None
    return EngineClock(version, [row for row in rows if row.begin_at is not None])


def read_summary(conn: Connection, span_id: str) -> SpanSummary:
    """The summary of a span that is committed."""
    from spanlog.records import ints

    query = select(
        Span.id,
        Span.rollout_id,
        Span.delivery,
        Span.trainable,
        Span.untrainable_reason,
        Span.version_low,
        Span.version_high,
        Span.oldest_version,
    ).where(Span.id == span_id)
    row = conn.execute(query).one()
    return SpanSummary(*row[:5], ints(row.version_low), ints(row.version_high), row.oldest_version)


def settle(outcomes: Sequence[tuple[Waiting, SpanSummary | BaseException]]) -> None:
    """Give results and failures to those who wait; a caller that has cancelled is not there to hear."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Waiting, SpanSummary | BaseException]]] = {}
    for future, outcome in outcomes:
        if isinstance(future, asyncio.Future):
            by_loop.setdefault(future.get_loop(), []).append((future, outcome))
        else:
            tell(future, outcome)
    for loop, told in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(tell_all, told)


def tell_all(outcomes: Sequence[tuple[Waiting, SpanSummary | BaseException]]) -> None:
    for future, outcome in outcomes:
        tell(future, outcome)


def tell(future: Waiting, outcome: SpanSummary | BaseException) -> None:
    with contextlib.suppress(InvalidStateError, asyncio.InvalidStateError):  # cancelled
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)
