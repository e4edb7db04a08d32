"""[I5] What is stored as a change reads back as it was, grows by what is new, and is read with one query."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from sqlalchemy import event

from spanlog import delta
from spanlog.database import Database
from spanlog.delta import EMPTY, NOTHING, Document, Parent
from spanlog.drafts import encode_draft
from spanlog.models import Span
from spanlog.records import SpanRecord, parent_of_record, read_chain, read_parent, read_spans
from spanlog.writer import SpanWriter, write_spans
from tests.spanlog.conversations import (
    DIALECTS,
    KEYS,
    Turn,
    append,
    conversations,
    first_body,
    same,
    to_bytes,
)
from tests.spanlog.test_writer import running, submit_as_one_batch
from tests.spanlog.world import World

PROPERTY = settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


def round_trip(document: Document, before: Document, named: bool = True) -> tuple[Document, delta.Delta]:
    change = delta.encode(document, delta.digest_document(before), named=named)
    key = change.key if named else None
    return delta.decode(before, key, change.patch, change.shared, change.items, change.tools), change


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(conversation=conversations())
def test_changes_add_up(conversation: tuple[str, list[Turn]]) -> None:
    _, turns = conversation
    documents: list[Document] = []
    for turn in turns:
        parsed = delta.parse(to_bytes(turn.body))
        assert parsed is not None, "nothing here has to be stored whole"
        before = EMPTY if turn.parent is None else documents[turn.parent]
        for named in (True, False):
            document, change = round_trip(parsed, before, named)
            assert same(document.value(), turn.body)
            assert change.digests == delta.digest_document(document)
        documents.append(document)


@PROPERTY
@given(conversation=conversations())
def test_spans_read_back_as_they_were(database: Database, conversation: tuple[str, list[Turn]]) -> None:
    dialect, turns = conversation
    world = World(database)
    rollout, ids = running(world), [f"spn_{world.policy}_{index}" for index in range(len(turns))]
    parents: list[Parent] = []
    writer = SpanWriter(database)
    for index, turn in enumerate(turns):
        fields: dict[str, Any] = (
            {"hub": {"messages": [*turn.body["input"]], "n": index}} if dialect == "responses" else {}
        )
        draft = world.draft(
            rollout,
            id=ids[index],
            dialect=dialect,
            parent=None if turn.parent is None else parents[turn.parent],
            request=to_bytes(turn.body, ascii_only=index % 2 == 0),
            prompt_tokens=turn.prompt,
            completion_tokens=turn.completion,
            logprobs=[-1.0] * len(turn.completion),
            received_at=None,
            **fields,
        )
        summary = writer.submit(draft).result(20)
        assert summary.parent is not None
        parents.append(summary.parent)
    writer.close()
    with database.read() as conn:
        spans = read_spans(conn, [rollout])[rollout]
        chains = [read_chain(conn, span_id) for span_id in ids]
    for records in (spans, chains[::-1][::-1]):
        assert [record and record.id for record in records] == ids
        for index, (record, turn) in enumerate(zip(records, turns, strict=True)):
            assert record is not None
            check(
                record,
                turn,
                {"messages": turn.body["input"], "n": index} if dialect == "responses" else turn.body,
            )
            assert_equal(parent_of_record(record), parents[index])


def check(record: SpanRecord, turn: Turn, hub: dict[str, Any]) -> None:
    assert same(record.request, turn.body) and same(record.hub, hub)
    assert record.stored_request.body() is None, "stored as a change"
    assert record.prompt_tokens is not None and record.prompt_tokens.tolist() == turn.prompt
    assert record.completion_tokens is not None and record.completion_tokens.tolist() == turn.completion


def assert_equal(one: Parent, other: Parent) -> None:
    assert (one.id, one.rollout_id, one.request, one.hub) == (
        other.id,
        other.rollout_id,
        other.request,
        other.hub,
    )
    assert (
        one.tokens is not None and other.tokens is not None and one.tokens.tolist() == other.tokens.tolist()
    )


WHOLE = {
    "no JSON": b"{",
    "empty": b"",
    "an array": b'[{"messages": []}]',
    "no history": b'{"model":  "m", "n": 1}',
    "a history that is none": b'{"messages": {"0": 1}}',
    "lone surrogate": b'{"messages": ["\\ud800"], "x":  1}',
    "lone surrogate in a key, beside a long number": b'{"messages": [], "\\ud800": 12345678901234567890123}',
    "infinite": b'{"messages": [1e400]}',
    "infinite beside a long number": b'{"messages": [1e400], "x": 12345678901234567890123}',
    "not a number": b'{"messages": [NaN], "x": 12345678901234567890123}',
    "deep": b'{"messages": [' + b"[" * 400 + b"]" * 400 + b"]}",
    "deep beside a long number": b'{"messages": [12345678901234567890, ' + b"[" * 400 + b"]" * 400 + b"]}",
    "not UTF-8": b'{"messages": ["\xff"]}',
}
CHANGES = {
    "duplicate keys": b'{"messages": [1], "messages": [2], "a": 1, "a": 1.0}',
    "long numbers": b'{"messages": [123456789012345678901234567890, -9223372036854775809, 18446744073709551616]}',
    "zeros": b'{"messages": [-0, -0.0, 0, 0.0, 1E5, 1e-7, 0.1234567890123456789012345]}',
    "nothing in it": b'{"messages": []}',
    "no text": b'{"prompt": ""}',
    "odd line ends": b'{"prompt": "a\\r\\nb\\rc\\u2028d\\u0085\\n\\n"}',
    "deep enough": b'{"messages": [' + b"[" * 200 + b"]" * 200 + b"]}",
}


@pytest.mark.parametrize("raw", [pytest.param(raw, id=name) for name, raw in (WHOLE | CHANGES).items()])
def test_odd_bodies(world: World, raw: bytes) -> None:
    """Also as a child of another, and as the parent of another."""
    rollout = running(world)
    usual = b'{"messages": [1, 2, {"role": "user"}], "a": 1}'
    writer = SpanWriter(world.database)
    parent = None
    for body in (raw, usual, raw, usual):
        world.now += 1
        parent = writer.submit(world.draft(rollout, request=body, parent=parent)).result(10).parent
    writer.close()
    with world.database.read() as conn:
        spans = read_spans(conn, [rollout])[rollout]
    for record, body in zip(spans, (raw, usual, raw, usual), strict=True):
        try:
            value = json.loads(body)
        except ValueError:
            value = None
        assert same(record.request, value)
        assert record.stored_request.body() == (body if body in WHOLE.values() else None)
        assert same(record.hub, value if isinstance(value, dict) else {})


def test_a_parent_that_is_not_there_costs_only_room(world: World) -> None:
    rollout, other = running(world), running(world)
    body = to_bytes(first_body("chat", "hello", {}))
    ghost = encode_draft(world.draft(rollout, request=body)).parent
    foreign = encode_draft(world.draft(other, request=body, id=f"spn_{other}")).parent
    itself = encode_draft(world.draft(rollout, request=body, id=f"spn_{rollout}")).parent
    drafts = [
        world.draft(other, request=body, id=f"spn_{other}"),
        world.draft(rollout, request=body, parent=ghost),
        world.draft(rollout, request=body, parent=foreign),
        world.draft(rollout, request=body, parent=itself, id=f"spn_{rollout}"),
        world.draft(rollout, policy_id="nowhere", parent=itself),
    ]
    futures = submit_as_one_batch(world.database, drafts)
    assert [future.exception(10) is None for future in futures] == [True, True, True, True, False]
    with world.database.read() as conn:
        spans = read_spans(conn, [rollout])[rollout]
    assert len(spans) == 3
    for span in spans:
        assert span.parent_id is None and span.shared_tokens == 0
        assert same(span.request, json.loads(body))
        assert span.prompt_tokens is not None and span.prompt_tokens.tolist() == [1, 2, 3, 4]


def test_a_parent_of_the_same_commit(world: World) -> None:
    """In whatever order the two were handed in."""
    rollout = running(world)
    draft = world.draft(rollout, id=f"spn_{rollout}_0")
    children = []
    for index in range(1, 4):
        parent = encode_draft(draft).parent
        draft = world.draft(rollout, id=f"spn_{rollout}_{index}", parent=parent)
        children.append(draft)
    first = world.draft(rollout, id=f"spn_{rollout}_0")
    futures = submit_as_one_batch(world.database, [children[2], first, children[1], children[0]])
    assert all(future.exception(10) is None for future in futures)
    with world.database.read() as conn:
        spans = read_spans(conn, [rollout])[rollout]
    assert [span.parent_id for span in spans] == [None, *(span.id for span in spans[:3])]
    assert all(span.shared_tokens == 4 for span in spans[1:])


def test_clocks_that_differ_do_not_hide_a_parent(world: World) -> None:
    """Another proxy's clock may put a child's id before its parent's."""
    rollout = running(world)
    writer = SpanWriter(world.database)
    parent = writer.submit(world.draft(rollout)).result(10).parent
    child = world.draft(
        rollout, parent=parent, started_at=world.now - 5, prompt_tokens=[1, 2, 3, 4, 5, 6, 7, 8]
    )
    child_id = writer.submit(child).result(10).id
    writer.close()
    with world.database.read() as conn:
        first, second = read_spans(conn, [rollout])[rollout]
    assert (first.id, first.parent_id, first.shared_tokens) == (child_id, second.id, 7)
    assert first.prompt_tokens is not None and first.prompt_tokens.tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def bytes_of(turn: dict[str, Any], before: delta.Digests) -> tuple[int, delta.Digests]:
    document = delta.parse(to_bytes(turn))
    assert document is not None
    change = delta.encode(document, before, named=True)
    return sum(len(part or b"") for part in (change.patch, change.items, change.tools)), change.digests


def harness_turns(dialect: str, turns: int) -> Iterator[tuple[dict[str, Any], int]]:
    """Requests as a harness with a long prompt sends them, and the bytes of what is new in each."""
    import random

    chance = random.Random(1)
    body = first_body(dialect, "words " * 50, {"instructions": "Be careful. " * 2000})
    body["tools"] = [{"name": f"tool{index}", "description": "Runs. " * 200} for index in range(20)]
    yield body, len(to_bytes(body))
    for index in range(turns):
        history = KEYS.get(dialect, "prompt")
        before = len(to_bytes({"x": body[history]}))
        append(body, dialect, chance)
        new = len(to_bytes({"x": body[history]})) - before
        if dialect == "messages":  # it marks the newest message, and its header holds a hash of the call
            body["system"][0] = {"type": "text", "text": f"header {index}"}
            for message in body[history][-4:]:
                message.pop("cache_control", None)
            body[history][-1]["cache_control"] = {"type": "ephemeral"}
            new += len(to_bytes(body[history][-3]))
        body["metadata"] = {"turn": index}
        yield body, new


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_turn_costs_what_is_new_in_it(dialect: str) -> None:
    """However long the conversation is already."""
    digests, sizes = NOTHING, []
    for body, new in harness_turns(dialect, 120):
        size, digests = bytes_of(body, digests)
        sizes.append(size)
        assert size <= 1.2 * new + 250, f"turn {len(sizes)} takes {size} bytes for {new} new ones"
    first, second = sum(sizes[1:61]), sum(sizes[61:])
    assert second < 1.2 * first, "the second half costs what the first one does"


@pytest.mark.parametrize("dialect", ["chat", "gemini"])
def test_an_early_message_that_changes_each_time_costs_its_own_size(dialect: str) -> None:
    digests = NOTHING
    for index, (body, new) in enumerate(harness_turns(dialect, 60)):
        body[KEYS[dialect]][0] = {"role": "user", "n": index, "content": "the time is " * 20}
        size, digests = bytes_of(body, digests)
        assert size <= 1.2 * new + 700


DEEP = 1100
"""Beyond Python's limit of recursion, and SQLite's of terms in an expression."""


def test_a_deep_chain_is_one_query(world: World) -> None:
    rollout = running(world)
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "go"}]}
    parent, prompt, batch, last = None, np.array([1, 2, 3], np.int32), [], ""
    for index in range(DEEP):
        if index:
            prompt = np.append(prompt, np.array([index - 1, 7], np.int32))
            body["messages"].append({"role": "assistant", "content": str(index)})
        draft = world.draft(
            rollout,
            id=f"spn_{rollout}_{index:05}",
            parent=parent,
            request=to_bytes(body),
            prompt_tokens=prompt,
            completion_tokens=[index],
            logprobs=[-1.0],
            received_at=None,
        )
        batch.append(encode_draft(draft))
        parent, last = batch[-1].parent, draft.id
    for start in range(0, DEEP, 200):
        write_spans(world.database, batch[start : start + 200], 0.0)
    queries: list[str] = []
    event.listen(world.database.engine, "before_cursor_execute", lambda *args: queries.append(args[2]))
    begin = time.monotonic()
    with world.database.read() as conn:
        record = read_chain(conn, last)
        took, asked = time.monotonic() - begin, [query for query in queries if "SELECT" in query.upper()]
        again = read_parent(conn, last)
        spans = read_spans(conn, [rollout])[rollout]
    assert record is not None and again is not None and parent is not None
    assert len(asked) == 1
    assert same(record.request, body)
    assert record.prompt_tokens is not None and record.prompt_tokens.tolist() == prompt.tolist()
    assert_equal(again, parent)
    assert same(spans[-1].request, body) and len(spans) == DEEP
    assert took < 10, f"{took:.1f} s"
    stored = world.column(Span, Span.shared_messages, Span.id == last)
    assert stored == [DEEP - 1]


def test_what_is_not_there_is_null(world: World) -> None:
    with world.database.read() as conn:
        assert read_chain(conn, "nowhere") is None and read_parent(conn, "nowhere") is None
