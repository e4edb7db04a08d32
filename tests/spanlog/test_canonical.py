"""Canonical messages: what harnesses write anew keeps its hash, what means something else does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spanlog.canonical import (
    canonical_arguments,
    canonical_message,
    context_hashes,
    context_key,
    dumps,
    extend_hash,
    reply_text,
)
from tests.spanlog.rewording import WORDS, Message, altered, conversations, reworded

KEY = context_key({}, policy_id="p")
FIELDS = st.sampled_from(
    ["role", "content", "tool_calls", "tool_call_id", "function", "name", "text", "arguments"]
)
ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(FIELDS, inner, max_size=3),
    max_leaves=8,
)

UNHURRIED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def last(messages: list[Message], key: bytes = KEY) -> str:
    return context_hashes(key, messages)[-1]


@UNHURRIED
@given(conversations().flatmap(lambda plain: st.tuples(st.just(plain), reworded(plain), reworded(plain))))
def test_a_history_written_anew_has_the_hashes_of_the_first(histories: tuple[list[Message], ...]) -> None:
    plain, once, again = histories
    assert context_hashes(KEY, once) == context_hashes(KEY, plain)
    assert context_hashes(KEY, again) == context_hashes(KEY, once)


@UNHURRIED
@given(conversations().flatmap(lambda plain: st.tuples(st.just(plain), reworded(plain))))
def test_a_turn_is_found_by_the_hash_of_its_request_and_reply(histories: tuple[list[Message], ...]) -> None:
    plain, sent = histories
    *request, reply = plain
    recorded = extend_hash(last(sent[:-1]), reply)
    assert recorded == last(sent)
    assert recorded == context_hashes(KEY, [*sent, {"role": "user", "content": "go on"}])[-2]
    assert len(context_hashes(KEY, request)) == len(request)


@UNHURRIED
@given(conversations().flatmap(lambda plain: st.tuples(st.just(plain), altered(plain).flatmap(reworded))))
def test_a_history_that_means_something_else_has_another_hash(histories: tuple[list[Message], ...]) -> None:
    plain, other = histories
    assert last(other) != last(plain)


@UNHURRIED
@given(conversations(), st.data())
def test_hashes_roll_a_prefix_has_the_hashes_of_the_whole(
    messages: list[Message], data: st.DataObject
) -> None:
    length = data.draw(st.integers(0, len(messages)))
    assert context_hashes(KEY, messages[:length]) == context_hashes(KEY, messages)[:length]
    hashes = context_hashes(KEY, messages)
    assert len(set(hashes)) == len(hashes)


@UNHURRIED
@given(st.dictionaries(FIELDS, ANY_JSON))
def test_no_json_is_too_odd(message: dict[str, Any]) -> None:
    canonical_message(message)
    context_hashes(context_key({"tools": message.get("content")}, policy_id="p"), [message, message])
    extend_hash(KEY.hex(), message)


def test_text_beside_a_call_counts_from_the_next_message_on() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
    said = {"role": "assistant", "content": "I look.", "tool_calls": [call]}
    dropped = said | {"content": None}
    user = {"role": "user", "content": "hi"}
    result = {"role": "tool", "tool_call_id": "c", "content": "x"}
    assert last([user, said]) == last([user, dropped])
    assert last([user, said, result]) != last([user, dropped, result])


def test_which_call_a_result_answers_counts_its_id_does_not() -> None:
    def history(first: str, second: str, answers: list[str]) -> list[Message]:
        calls = [
            {"id": id, "type": "function", "function": {"name": "bash", "arguments": "{}"}}
            for id in (first, second)
        ]
        results = [{"role": "tool", "tool_call_id": id, "content": "same"} for id in answers]
        return [{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls}, *results]

    assert last(history("call_a", "call_b", ["call_a"])) == last(history("calla", "callb", ["calla"]))
    assert last(history("a", "b", ["a"])) != last(history("a", "b", ["b"]))
    assert last(history("a", "b", ["a", "b"])) != last(history("a", "b", ["b", "a"]))


@pytest.mark.parametrize(
    ("one", "other", "equal"),
    [
        ('{"a": 1, "b": [1.0]}', '{"b":[1],"a":1}', True),
        ('{"a": "\\u00e9"}', '{"a":"é"}', True),
        ("", "{}", True),
        ("{not json", " {not json\n", True),
        ("{not json", "{not json}", False),
        ('{"a": 1}', '{"a": "1"}', False),
        ('{"a": 1}', '{"a": true}', False),
        ('{"a": null}', "{}", False),
        ('{"a": [1, 2]}', '{"a": [2, 1]}', False),
        ("[1]", '["[1]"]', False),
    ],
)
def test_arguments_are_compared_as_json(one: str, other: str, equal: bool) -> None:
    assert (dumps(canonical_arguments(one)) == dumps(canonical_arguments(other))) is equal


def test_what_smolagents_adds_to_a_reply_is_put_aside() -> None:
    said = "Thought: multiply.\n<code>\nprint(6*7)\n"
    calls = (
        "[{'id': 'call_1', 'type': 'function', 'function': {'name': 'python_interpreter', 'arguments': 'x'}}]"
    )
    echoed = f"{said}</code>\nCalling tools:\n{calls}"
    assert reply_text({"content": [{"type": "text", "text": echoed}]}) == said.strip()
    assert reply_text({"content": f"Calling tools: {calls}"}) == f"Calling tools: {calls}"


def key(**request: Any) -> bytes:
    return context_key(request, policy_id="p")


def tool(name: str = "bash", **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "x": 1}} | fields}


def test_the_key_holds_what_changes_the_prompt_of_equal_messages() -> None:
    same = [
        key(tools=[tool(), tool("edit")]),
        key(tools=[tool(strict=True) | {"cache_control": {}}, tool("edit", strict=None)]),
        key(
            tools=[tool(parameters={"x": 1, "type": "object"}), tool("edit")],
            tool_choice="auto",
            temperature=1,
        ),
    ]
    others = [
        key(),
        key(tools=[tool("edit"), tool()]),
        key(tools=[tool(), tool("edit", description="d")]),
        key(tools=[tool(), tool("edit")], tool_choice="none"),
        key(tools=[tool(), tool("edit")], reasoning_effort="high"),
        key(tools=[tool(), tool("edit")], chat_template_kwargs={"enable_thinking": False}),
        context_key({"tools": [tool(), tool("edit")]}, policy_id="q"),
    ]
    assert len(set(same)) == 1
    assert len({*same, *others}) == 1 + len(others)
    assert key(tools=[], tool_choice="none", chat_template_kwargs={}) == key(tools=None)


def test_content_of_no_known_type_has_a_form() -> None:
    """What the engine refuses must not fail here first."""
    for content in (True, 5, {"a": 1}, [True], [[None]]):
        assert context_hashes(b"k", [{"role": "assistant", "content": content}])
