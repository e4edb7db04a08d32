"""Matching: the turn that a request continues, found on both databases with one query, chosen alike by everyone."""

from __future__ import annotations

import itertools
import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from spanlog.canonical import context_hashes, context_key, extend_hash
from spanlog.drafts import SpanDraft, encode_draft
from spanlog.matching import FIRST, Candidate, Echo, choose, echoed, find_candidates, read_echo
from spanlog.writer import write_spans
from tests.spanlog.rewording import Message
from tests.spanlog.world import START, World

KEY = context_key({}, policy_id="p")


def call(id: str, **arguments: Any) -> dict[str, Any]:
    return {"id": id, "type": "function", "function": {"name": "bash", "arguments": json.dumps(arguments)}}


def reply(text: str | None, *calls: dict[str, Any], **fields: Any) -> Message:
    return {"role": "assistant", "content": text, **({"tool_calls": list(calls)} if calls else {}), **fields}


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def hashes(messages: list[Message]) -> list[str]:
    """Of the replies in a history, the longest first."""
    every = context_hashes(KEY, messages)
    return [
        every[index] for index in reversed(range(len(messages))) if messages[index]["role"] == "assistant"
    ]


def found(id: str, messages: list[Message], **fields: Any) -> Candidate:
    """The last of the messages as a recorded turn."""
    *request, said = messages
    values: dict[str, Any] = {"ended_at": 1.0, "finish_reason": "stop", "stop_reason": None} | fields
    context = extend_hash(context_hashes(KEY, request)[-1], said)
    return Candidate(id, context, read_echo(said), **values)


def chosen(candidates: list[Candidate], messages: list[Message]) -> str | None:
    winner = choose(candidates, hashes(messages), echoed(messages))
    return winner.id if winner else None


def test_the_longest_history_wins_whatever_else_speaks_for_another() -> None:
    one = [user("hi"), reply("a", call("c1"))]
    two = [*one, {"role": "tool", "tool_call_id": "c1", "content": "x"}, reply("b")]
    candidates = [found("early", one, ended_at=9.0), found("late", two)]
    assert chosen(candidates, [*two, user("go on")]) == "late"
    assert chosen(candidates, [*one, user("go on")]) == "early"
    assert chosen(candidates, [user("ho"), reply("a", call("c1")), user("go on")]) is None
    assert chosen([], [user("hi")]) is None


def test_ties_are_broken_by_ids_then_text_then_reasoning_then_time() -> None:
    def turn(id: str, text: str, call_id: str, ended_at: float, thought: str = "") -> Candidate:
        said = reply(text, call(call_id), reasoning=thought)
        return found(id, [user("hi"), said], ended_at=ended_at)

    candidates = [
        turn("ids", "text", "c1", 1.0),
        turn("text", "text", "c2", 2.0),
        turn("reasoning", "", "c3", 3.0, thought="because"),
        turn("latest", "", "c4", 5.0),
        turn("equally late", "", "c5", 5.0),
    ]
    for order in itertools.permutations(candidates):
        some = list(order)
        assert chosen(some, [user("hi"), reply("text", call("c1"), reasoning="because")]) == "ids"
        assert chosen(some, [user("hi"), reply("text", call("other"), reasoning="because")]) == "text"
        assert (
            chosen(some, [user("hi"), reply(None, call("other"), reasoning_content="because")]) == "reasoning"
        )
        assert chosen(some, [user("hi"), reply(None, call("other"))]) == "latest"


def test_text_beside_a_call_may_be_dropped_and_not_altered() -> None:
    candidates = [found("turn", [user("hi"), reply("text", call("c1"))])]
    assert chosen(candidates, [user("hi"), reply(None, call("c1"))]) == "turn"
    assert chosen(candidates, [user("hi"), reply(" text\n", call("c1"))]) == "turn"
    assert chosen(candidates, [user("hi"), reply("other text", call("c1"))]) is None


@settings(deadline=None)
@given(
    st.permutations(range(6)),
    st.sets(st.sampled_from(["c0", "c1", "c2"])),
    st.sampled_from([None, "", "t", "u"]),
)
def test_the_choice_does_not_depend_on_the_order_of_the_candidates(
    order: list[int], ids: set[str], text: str | None
) -> None:
    some = [
        Candidate(
            f"s{number}",
            "h",
            Echo(frozenset([f"c{number % 3}"]), "tu"[number % 2], None, True),
            float(number // 2),
            None,
            None,
        )
        for number in range(6)
    ]
    echo = Echo(frozenset(ids), text or None, None, True)
    assert choose([some[place] for place in order], ["h"], [echo]) == choose(some, ["h"], [echo])


def test_turns_are_found_by_hash_with_what_the_choice_needs(world: World) -> None:
    group = world.group()
    one, other = (rollout.id for rollout in group.rollouts)
    said = reply("text", call("c1"), reasoning="because")
    wanted = extend_hash(context_hashes(KEY, [user("hi")])[-1], said)

    def draft(rollout_id: str = one, **fields: Any) -> SpanDraft:
        values: dict[str, Any] = {
            "reply": {"message": said},
            "context_hash": wanted,
            "ended_at": START + 1,
        } | fields
        return world.draft(rollout_id, **values)

    drafts = [
        draft(),
        draft(other),
        draft(status="upstream_error"),
        draft(delivery="aborted"),
        draft(prompt_tokens=None),
        draft(completion_tokens=None, logprobs=None, received_at=None),
        draft(context_hash="another"),
        draft(reply=None),
    ]
    encoded = [encode_draft(one) for one in drafts]
    assert not [bad for bad in write_spans(world.database, encoded, 0.2) if isinstance(bad, Exception)]
    ids = [span.row["id"] for span in encoded]
    with world.database.read() as conn:
        whole, bare = sorted(
            find_candidates(conn, [(one, [wanted])])[0], key=lambda found: ids.index(found.id)
        )
        unknown = [f"x{number}" for number in range(FIRST)]
        far, none, elsewhere = find_candidates(
            conn, [(one, [*unknown, wanted]), (one, []), (other, [wanted])]
        )
    assert none == [] and [found.id for found in elsewhere] == [ids[1]]
    assert whole == Candidate(ids[0], wanted, read_echo(said), START + 1, None, None)
    assert (bare.id, bare.reply) == (ids[7], Echo())
    assert {found.id for found in far} == {ids[0], ids[7]}
