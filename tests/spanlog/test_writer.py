"""[I3] A future that resolved is a span in the database; one bad draft fails alone."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import event

from spanlog import writer as writer_module
from spanlog.database import Database, open_database
from spanlog.delta import Parent
from spanlog.errors import DatabaseLocked, NotFound, SpanlogError, TransactionLost, WriterClosed
from spanlog.models import Blob, Span
from spanlog.records import read_spans
from spanlog.writer import SpanSummary, SpanWriter
from tests.spanlog.world import START, World


def running(world: World) -> str:
    rollout = world.group().rollouts[0].id
    world.claim(rollout)
    return rollout


def test_a_span_comes_back_as_it_was(world: World) -> None:
    rollout = running(world)
    draft = world.draft(
        rollout,
        request='{"messages": [], "x": "é\\ud800"}'.encode() + b" " * 2000,
        reply={"message": {"content": "\x00 \ud800 é"}, "usage": {"n": 1.5}},
        sampling={"temperature": 0.7, "top_k": None},
        stripped=["seed"],
        error={"message": "a\x00b"},
        finish_reason="stop",
        stop_reason="\x00",
        first_token_at=START + 0.123456789,
    )
    writer = SpanWriter(world.database)
    summary = writer.submit(draft).result(10)
    writer.close()
    with world.database.read() as conn:
        (record,) = read_spans(conn, [rollout, "nowhere"])[rollout]
    assert (
        record.id == summary.id
        and record.request == json.loads(draft.request)
        and record.reply == draft.reply
    )
    assert record.prompt_tokens is not None and record.prompt_tokens.tolist() == [1, 2, 3, 4]
    assert record.completion_tokens is not None and record.completion_tokens.tolist() == [5, 6, 7]
    assert record.logprobs is not None and record.logprobs.tolist() == [-0.5, -0.25, -1.0]
    assert record.version_low is not None and record.version_low.tolist() == [0, 0, 0]
    assert (record.sampling, record.stripped, record.error) == (draft.sampling, ["seed"], {"message": "a�b"})
    assert record.first_token_at == START + 0.123456789 and record.trainable and record.oldest_version == 0


def test_a_child_reads_its_parents_tokens(world: World) -> None:
    rollout = running(world)
    writer = SpanWriter(world.database)
    parent = writer.submit(world.draft(rollout)).result(10)
    world.now += 5
    tokens = np.array([1, 2, 3, 4, 5, 6, 7], np.int32)
    prompt = [1, 2, 3, 4, 5, 6, 9, 10]
    child = world.draft(rollout, parent=Parent(parent.id, rollout, tokens), prompt_tokens=prompt)
    writer.submit(child).result(10)
    writer.close()
    with world.database.read() as conn:
        spans = read_spans(conn, [rollout])[rollout]
    assert spans[1].prompt_tokens is not None and spans[1].shared_tokens == 6
    assert spans[1].prompt_tokens.tolist() == prompt


def test_text_without_tokens_has_no_versions(world: World) -> None:
    rollout = running(world)
    writer = SpanWriter(world.database)
    fields: dict[str, Any] = {
        "prompt_tokens": None,
        "completion_tokens": None,
        "logprobs": None,
        "received_at": None,
    }
    summary = writer.submit(world.draft(rollout, **fields)).result(10)
    none = writer.submit(world.draft(rollout, completion_tokens=[], logprobs=[], received_at=None)).result(10)
    writer.close()
    assert (summary.trainable, summary.version_low, summary.oldest_version) == (True, None, None)
    assert none.version_low is not None and none.version_low.size == 0


def test_a_late_span_is_kept_and_changes_nothing(world: World) -> None:
    rollout = running(world)
    world.finish(rollout)
    writer = SpanWriter(world.database)
    summary = writer.submit(world.draft(rollout)).result(10)
    writer.close()
    assert (summary.delivery, summary.trainable, summary.untrainable_reason) == ("late", False, "late")
    assert world.rollout(rollout).state == "succeeded"


def test_an_unknown_version_is_not_trained_on(world: World) -> None:
    rollout = running(world)
    writer = SpanWriter(world.database)
    for engine in (None, "nowhere"):
        summary = writer.submit(world.draft(rollout, engine_id=engine)).result(10)
        assert (summary.trainable, summary.untrainable_reason) == (False, "unknown_version")
    kept = writer.submit(world.draft(rollout, trainable=False, untrainable_reason="n")).result(10)
    writer.close()
    assert (kept.trainable, kept.untrainable_reason, kept.oldest_version) == (False, "n", 0)


BAD: dict[str, dict[str, Any]] = {
    "no rollout": {"rollout_id": "nowhere"},
    "no policy": {"policy_id": "nowhere"},
    "lengths": {"logprobs": [-1.0]},
    "range": {"completion_tokens": [1, 2, 2**40]},
    "nan": {"sampling": {"temperature": float("nan")}},
    "type": {"prompt_tokens": ["a"]},
    "request": {"request": None},
    "text": {"upstream_id": "\udc80"},
    "json": {"reply": {"x": object()}},
}


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(kinds=st.lists(st.sampled_from([None, None, *BAD]), min_size=1, max_size=8))
def test_bad_drafts_fail_alone(database: Database, kinds: list[str | None]) -> None:
    world = World(database)
    rollout = running(world)
    drafts = [world.draft(**({"rollout_id": rollout} | (BAD[kind] if kind else {}))) for kind in kinds]
    futures = submit_as_one_batch(database, drafts)
    written = set(world.column(Span, Span.id, Span.policy_id == world.policy))
    for kind, future in zip(kinds, futures, strict=True):
        error = future.exception(10)
        assert (error is None) == (kind is None), (kind, error)
        if error is None:
            written.remove(future.result().id)
    assert written == set(), "nothing was written that failed"


def submit_as_one_batch(database: Database, drafts: list[Any]) -> list[Future[SpanSummary]]:
    """Queue the drafts while the writer is held up, so that they share a commit."""
    writer = SpanWriter(database)
    if database.is_sqlite:
        with database.begin():
            futures = [writer.submit(draft) for draft in drafts]
    else:
        futures = [writer.submit(draft) for draft in drafts]
    writer.close()
    return futures


def test_the_same_id_twice_fails_the_second(world: World) -> None:
    rollout = running(world)
    drafts = [
        world.draft(rollout, id=f"spn_{rollout}"),
        world.draft(rollout, id=f"spn_{rollout}"),
        world.draft(rollout),
    ]
    first, second, third = submit_as_one_batch(world.database, drafts)
    assert first.result(10).id == f"spn_{rollout}" and third.result(10)
    assert isinstance(second.exception(10), SpanlogError)


def test_a_document_is_stored_once(world: World) -> None:
    rollout = running(world)
    request = f'{{"rollout": "{rollout}"}}'.encode()
    futures = submit_as_one_batch(world.database, [world.draft(rollout, request=request) for _ in range(5)])
    assert len({future.result(10).id for future in futures}) == 5
    hashes = world.column(Span, Span.request_hash, Span.rollout_id == rollout)
    assert len(set(hashes)) == 1 and len(world.column(Blob, Blob.hash, Blob.hash == hashes[0])) == 1


def test_closing_commits_what_is_queued(world: World) -> None:
    rollout = running(world)
    writer = SpanWriter(world.database)
    futures = [writer.submit(world.draft(rollout)) for _ in range(700)]
    writer.drain(30)
    assert all(future.done() for future in futures)
    futures += [writer.submit(world.draft(rollout)) for _ in range(10)]
    writer.close()
    writer.close()
    assert len({future.result(0).id for future in futures}) == 710 and writer.queue_depth == 0
    with pytest.raises(WriterClosed):
        writer.submit(world.draft(rollout))
    assert len(world.column(Span, Span.id, Span.rollout_id == rollout)) == 710


def test_a_lock_fails_the_batch_and_not_the_writer(make_url: Callable[..., str], backend: str) -> None:
    if backend != "sqlite":
        return
    url = make_url()
    world = World(open_database(url, migrate=False, busy_timeout_s=0.1))
    rollout = running(world)
    writer = SpanWriter(world.database)
    other = sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    assert isinstance(writer.submit(world.draft(rollout)).exception(10), DatabaseLocked)
    other.execute("ROLLBACK")
    assert writer.submit(world.draft(rollout)).result(10).trainable
    other.close()
    writer.close()
    world.database.close()


def test_a_broken_connection_is_mended(world: World, backend: str) -> None:
    if backend == "sqlite":
        return
    from sqlalchemy import text

    rollout = running(world)
    writer = SpanWriter(world.database)
    writer.submit(world.draft(rollout)).result(10)
    with world.database.begin() as conn:
        kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database()"
        conn.execute(text(f"{kill} AND pid <> pg_backend_pid()"))
    assert writer.submit(world.draft(rollout)).result(10).trainable
    writer.close()


def test_a_cancelled_future_is_no_fault(world: World) -> None:
    rollout = running(world)
    writer = SpanWriter(world.database)
    futures = [writer.submit(world.draft(rollout)) for _ in range(20)]
    for future in futures[::2]:
        future.cancel()
    writer.close()
    assert all(future.result(0).trainable for future in futures[1::2])
    assert len(world.column(Span, Span.id, Span.rollout_id == rollout)) == 20, (
        "the caller left; the span stays"
    )


def test_not_found_names_the_rollout(world: World) -> None:
    writer = SpanWriter(world.database)
    assert isinstance(writer.submit(world.draft("nowhere")).exception(10), NotFound)
    assert isinstance(writer.submit(world.draft("x", logprobs=np.zeros(1))).exception(10), ValueError)
    writer.close()


@pytest.mark.parametrize("wait_s", [0.0, 0.05])
def test_no_acknowledged_span_is_lost_by_a_kill(world: World, wait_s: float) -> None:
    """[I3]"""
    rollout = running(world)
    url = world.database.url.render_as_string(hide_password=False)
    command = [
        sys.executable,
        "-m",
        "tests.spanlog.writing_process",
        url,
        world.policy,
        world.engine,
        rollout,
    ]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=os.environ | {"PYTHONPATH": "."}
    ) as process:
        assert process.stdout is not None
        acknowledged = [process.stdout.readline().strip() for _ in range(100)]
        time.sleep(wait_s)
        process.send_signal(signal.SIGKILL)
        acknowledged += [line.strip() for line in process.stdout if line.endswith("\n")]
    written = set(world.column(Span, Span.id, Span.rollout_id == rollout))
    assert all(acknowledged) and set(acknowledged) <= written


def test_a_batch_that_lost_against_another_transaction_is_written_again(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout, insert, tries = running(world), writer_module.insert_batch, []

    def loses_once(*arguments: Any) -> Any:
        tries.append(arguments)
        if len(tries) == 1:
            raise TransactionLost("a deadlock: try again")
        return insert(*arguments)

    monkeypatch.setattr(writer_module, "insert_batch", loses_once)
    writer = SpanWriter(world.database)
    summary = writer.submit(world.draft(rollout)).result(10)
    writer.close()
    assert world.column(Span, Span.id, Span.rollout_id == rollout) == [summary.id]


def test_a_savepoint_that_cannot_be_released_fails_its_span_alone(world: World) -> None:
    rollout, releases = running(world), []

    def refuse(*_: Any) -> None:
        releases.append(1)
        if len(releases) == 1:
            raise ValueError("refused at the release")

    event.listen(world.database.engine, "release_savepoint", refuse)
    try:
        drafts = [world.draft(rollout), world.draft(rollout), world.draft(rollout, policy_id="nowhere")]
        futures = submit_as_one_batch(world.database, drafts)
    finally:
        event.remove(world.database.engine, "release_savepoint", refuse)
    assert "refused at the release" in str(futures[0].exception(10))
    assert futures[2].exception(10) is not None
    assert futures[1].result(10).rollout_id == rollout, "each future has the result of its own span"
