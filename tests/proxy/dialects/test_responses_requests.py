"""What a request of the Responses API becomes, what of it is dropped, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.dialects import responses
from proxy.dialects.base import BadRequest, Target
from proxy.dialects.responses.reasoning import seal
from tests.proxy.dialects.responses_replies import KEY, TOOLS, decode

USER = {"role": "user", "content": "hi"}
TARGET = Target("spn_" + KEY, 1.0)


def messages(items: Any, **fields: Any) -> list[dict[str, Any]]:
    return decode(input=items, **fields).hub["messages"]


def refused(**fields: Any) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        decode(**fields)
    return caught.value


def test_text_and_instructions() -> None:
    assert messages("hi", instructions="Be brief") == [{"role": "system", "content": "Be brief"}, USER]
    assert messages([{**USER, "type": "message"}], instructions=None) == [USER]


def test_roles_and_parts() -> None:
    parts = [
        {"type": "input_text", "text": "a"},
        {"type": "input_image", "image_url": "data:x", "detail": "low"},
    ]
    items = [
        {"role": "developer", "content": [{"type": "input_text", "text": "one part is text"}]},
        {"role": "system", "content": "s"},
        {"type": "message", "role": "user", "content": parts},
        {
            "role": "assistant",
            "content": [{"type": "output_text", "text": "a"}, {"type": "refusal", "refusal": "b"}],
        },
    ]
    image = {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}
    assert messages(items) == [
        {"role": "developer", "content": "one part is text"},
        {"role": "system", "content": "s"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
        {"role": "assistant", "content": "ab"},
    ]


def test_one_turn_of_items_is_one_message() -> None:
    items = [
        USER,
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [],
            "content": [{"type": "reasoning_text", "text": "hm"}],
        },
        {"role": "assistant", "content": "I look"},
        {"type": "function_call", "call_id": "a", "name": "read", "arguments": '{"x": 1}'},
        {"type": "function_call", "call_id": "b", "name": "find", "namespace": "crm", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"'},
        {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "B"}]},
        {"type": "function_call_output", "call_id": "a", "output": "A"},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "C"},
        {"role": "assistant", "content": "Done"},
        {"role": "assistant", "content": "Another"},
    ]
    _, turn, *answers, done, another = messages(items)
    assert (turn["content"], turn["reasoning_content"]) == ("I look", "hm")
    assert [
        (call["id"], call["function"]["name"], call["function"]["arguments"]) for call in turn["tool_calls"]
    ] == [
        ("a", "read", '{"x": 1}'),
        ("b", "crm__find", "{}"),
        ("c", "patch", json.dumps({"input": 'a "b"'}, separators=(",", ":"))),
    ]
    assert [(answer["tool_call_id"], answer["content"]) for answer in answers] == [
        ("b", "B"),
        ("a", "A"),
        ("c", "C"),
    ]
    assert (done["content"], another["content"]) == ("Done", "Another")


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"content": [{"type": "reasoning_text", "text": "a"}], "encrypted_content": seal("b")}, "a"),
        ({"summary": [{"type": "summary_text", "text": "c"}], "encrypted_content": seal("é")}, "é"),
        ({"summary": [{"type": "summary_text", "text": "c"}], "encrypted_content": "gAAAA"}, "c"),
        ({"encrypted_content": "gAAAA"}, None),
        ({"encrypted_content": "singletree.1.***"}, None),
        ({}, None),
    ],
)
def test_thinking(fields: dict[str, Any], text: str | None) -> None:
    item = {"type": "reasoning", "id": "rs_1", "summary": [], **fields}
    call = decode(input=[USER, item, {"role": "assistant", "content": "x"}])
    assert call.hub["messages"][1].get("reasoning_content") == text
    sealed = bool(fields.get("encrypted_content"))
    assert ("input.reasoning.encrypted_content" in call.ignored) == (sealed and text is None)


def test_shells_of_a_harness_are_function_calls_and_hosted_ones_are_dropped() -> None:
    items = [
        USER,
        {"type": "web_search_call", "id": "ws_1", "status": "completed"},
        {
            "type": "local_shell_call",
            "id": "lsh_1",
            "call_id": "s",
            "action": {"type": "exec", "command": ["ls"]},
        },
        {"type": "local_shell_call_output", "id": "s", "output": "a.txt"},
    ]
    call = decode(input=items)
    _, shell, answer = call.hub["messages"]
    assert shell["tool_calls"][0]["function"] == {
        "name": "local_shell",
        "arguments": '{"type":"exec","command":["ls"]}',
    }
    assert (answer["tool_call_id"], answer["content"]) == ("s", "a.txt")
    assert "input.web_search_call" in call.ignored


def test_tools() -> None:
    call = decode(
        input=[
            USER,
            {"type": "additional_tools", "role": "developer", "tools": [{"type": "custom", "name": "late"}]},
        ]
    )
    functions = [tool["function"] for tool in call.hub["tools"]]
    assert [function["name"] for function in functions] == [
        "read",
        "crm__find",
        "crm__query",
        "patch",
        "late",
    ]
    assert functions[0] == {
        "name": "read",
        "parameters": {"type": "object", "properties": {}},
        "strict": False,
    }
    assert functions[3]["parameters"]["required"] == ["input"]
    assert set(call.ignored) == {"tools.web_search", "tools.custom.format"}
    assert len(call.hub["messages"]) == 1


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        (None, None),
        ({"type": "function", "name": "read"}, {"type": "function", "function": {"name": "read"}}),
        ({"type": "custom", "name": "patch"}, {"type": "function", "function": {"name": "patch"}}),
    ],
)
def test_tool_choice(choice: Any, expected: Any) -> None:
    assert decode(tool_choice=choice).hub.get("tool_choice") == expected


def test_allowed_tools() -> None:
    allowed = [
        {"type": "function", "name": "read"},
        {"type": "namespace", "name": "crm"},
        {"type": "web_search"},
    ]
    call = decode(tool_choice={"type": "allowed_tools", "mode": "required", "tools": allowed})
    assert call.hub["tool_choice"] == "required"
    assert [tool["function"]["name"] for tool in call.hub["tools"]] == ["read", "crm__find", "crm__query"]


def test_without_tools_there_is_nothing_to_choose() -> None:
    call = decode(tools=[{"type": "web_search"}], tool_choice="auto", parallel_tool_calls=True)
    assert not call.hub.keys() & {"tools", "tool_choice", "parallel_tool_calls"}


def test_fields() -> None:
    schema = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}
    call = decode(
        max_output_tokens=5,
        temperature=0.5,
        parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"},
        text={"format": schema, "verbosity": "low"},
        include=["reasoning.encrypted_content", "web_search_call.results"],
        top_k=3,
        truncation="auto",
        prompt_cache_key="k",
        something_new=1,
        service_tier=None,
    )
    given = {name: value for name, value in call.hub.items() if name not in ("tools", "messages")}
    assert given == {
        "model": "m",
        "max_completion_tokens": 5,
        "temperature": 0.5,
        "parallel_tool_calls": False,
        "reasoning_effort": "low",
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
        },
        "top_k": 3,
    }
    expected = {"reasoning.summary", "text.verbosity", "include.web_search_call.results", "truncation"}
    expected |= {"prompt_cache_key", "something_new", "tools.web_search", "tools.custom.format"}
    assert set(call.ignored) == expected


BAD: list[tuple[dict[str, Any], str | None]] = [
    ({"input": None}, "input"),
    ({"input": ""}, "input"),
    ({"input": []}, "input"),
    ({"input": 5}, "input"),
    ({"input": ["hi"]}, "input[0]"),
    ({"input": [{"content": "no role"}]}, "input[0].type"),
    ({"input": [{"type": "additional_tools", "tools": []}]}, "input"),
    ({"input": [{"role": "critic", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_text", "text": 5}]}]},
        "input[0].content[0].text",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]},
        "input[0].content[0]",
    ),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
        "input[0].content[0].file_id",
    ),
    ({"input": [{"role": "user", "content": [{"type": ["odd"]}]}]}, "input[0].content[0].type"),
    ({"input": [{"type": ["odd"]}]}, "input[0].type"),
    ({"input": [{"type": "compaction", "encrypted_content": "x"}]}, "input[0].type"),
    ({"input": [USER, {"type": "function_call", "call_id": "a", "name": "n"}]}, "input[1].arguments"),
    (
        {"input": [USER, {"type": "function_call_output", "call_id": "nobody", "output": "x"}]},
        "input[1].call_id",
    ),
    ({"input": [USER, {"type": "item_reference", "id": "msg_elsewhere"}]}, "input[1].id"),
    ({"instructions": ["x"]}, "instructions"),
    ({"stream": "yes"}, "stream"),
    ({"max_output_tokens": "5"}, "max_output_tokens"),
    ({"max_output_tokens": True}, "max_output_tokens"),
    ({"include": [{}]}, "include"),
    ({"background": True}, "background"),
    ({"conversation": "conv_1"}, "conversation"),
    ({"prompt": {"id": "p"}}, "prompt"),
    ({"tools": {}}, "tools"),
    ({"tools": [{"type": "function", "function": {"name": "chat's form"}}]}, "tools[0].name"),
    ({"tools": [TOOLS[0], TOOLS[0]]}, "tools[1].name"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": {"type": "web_search"}}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "absent"}}, "tool_choice"),
    ({"tool_choice": {"type": "allowed_tools", "mode": "odd", "tools": []}}, "tool_choice.mode"),
    ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
    ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
    ({"previous_response_id": "somewhere"}, "previous_response_id"),
]


@pytest.mark.parametrize(("fields", "param"), BAD, ids=[json.dumps(fields)[:60] for fields, _ in BAD])
def test_refused(fields: dict[str, Any], param: str | None) -> None:
    error = refused(**fields)
    assert (error.status, error.param) == (400, param)


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"[]", b'"x"', b'{"input": "\xff"}', rb'{"input": "\ud800"}', b'{"input":' + b"[" * 5000],
)
def test_bodies_that_are_none(raw: bytes) -> None:
    with pytest.raises(BadRequest):
        responses.decode(raw, TARGET)


def test_deep_nesting() -> None:
    for name in ("metadata", "text"):
        raw = b'{"input": "hi", "%b": {"format": {"type": "text", "x": %b}}}' % (
            name.encode(),
            b"[" * 500 + b"]" * 500,
        )
        with pytest.raises(BadRequest, match="nested too deeply"):
            responses.decode(raw, TARGET)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from(["function", "message", "allowed_tools", "reasoning"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "role", "id", "call_id", "name", "content", "tools", "format"]), inner
        )
    ),
    max_leaves=8,
)
ITEMS = st.dictionaries(st.sampled_from(["role", "id", "call_id", "name", "content", "output"]), JSON)
FIELDS = [
    "model",
    "input",
    "tools",
    "tool_choice",
    "text",
    "reasoning",
    "include",
    "metadata",
    "previous_response_id",
]
KINDS = [
    "message",
    "reasoning",
    "function_call",
    "custom_tool_call_output",
    "local_shell_call",
    "item_reference",
]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(FIELDS), JSON), st.sampled_from(KINDS) | JSON, ITEMS)
def test_no_value_breaks_it(body: dict[str, Any], kind: Any, item: dict[str, Any]) -> None:
    body["input"] = [item | {"type": kind}]
    try:
        responses.decode(json.dumps(body).encode(), TARGET)
    except BadRequest as error:
        assert str(error)
