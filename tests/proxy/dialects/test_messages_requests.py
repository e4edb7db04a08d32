"""Requests of the Messages API in hub terms: what says the same becomes the same, what nobody can serve is refused."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.dialects import messages
from proxy.dialects.base import BadRequest, Target

TOOL: dict[str, Any] = {"name": "look", "description": "Looks.", "input_schema": {"type": "object"}}
PNG = {"type": "base64", "media_type": "image/png", "data": "aGk="}


def body(*turns: Any, **fields: Any) -> dict[str, Any]:
    """``turns``: messages; a bare string or list of blocks is the user's."""
    found = [turn if isinstance(turn, dict) else {"role": "user", "content": turn} for turn in turns]
    return {"model": "m", "max_tokens": 8, "messages": found or [{"role": "user", "content": "hi"}], **fields}


def decode(document: dict[str, Any]) -> messages.MessagesCall:
    return messages.decode(orjson.dumps(document), Target(span_id="spn_x", created_at=0.0))


def hub(*turns: Any, **fields: Any) -> dict[str, Any]:
    return decode(body(*turns, **fields)).hub


def said(*turns: Any, **fields: Any) -> list[dict[str, Any]]:
    return hub(*turns, **fields)["messages"]


def refusal(document: Any) -> BadRequest:
    with pytest.raises(BadRequest) as found:
        messages.decode(
            document if isinstance(document, bytes) else orjson.dumps(document), Target("spn_x", 0.0)
        )
    return found.value


def assistant(*blocks: dict[str, Any] | str) -> dict[str, Any]:
    return {"role": "assistant", "content": [text(b) if isinstance(b, str) else b for b in blocks]}


def text(value: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": value, **fields}


def use(call_id: str, name: str = "look", **arguments: Any) -> dict[str, Any]:
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def result(call_id: str, content: Any = "done", **fields: Any) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": call_id, "content": content, **fields}


# Messages


def test_system_and_text() -> None:
    assert said("hi", system="be kind") == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "hi"},
    ]
    assert said("hi", system=[text("be kind")]) == said("hi", system="be kind")
    assert said("hi", system=[text("a"), text("b")])[0]["content"] == [text("a"), text("b")]
    assert said("hi", system="") == said("hi", system=[]) == said("hi")


def test_a_system_message_stays_where_it_was() -> None:
    found = said("hi", {"role": "system", "content": "note"}, assistant("yes"), "go on")
    assert [message["role"] for message in found] == ["user", "system", "assistant", "user"]


def test_a_turn_sent_in_pieces_is_one_message() -> None:
    pieces = ["go", assistant("I "), assistant("look."), assistant(use("a", city="Rom", n=1)), [result("a")]]
    whole = ["go", assistant("I look.", use("a", city="Rom", n=1)), [result("a")]]
    assert said(*pieces) == said(*whole)
    assert said(*whole)[1:] == [
        {
            "role": "assistant",
            "content": "I look.",
            "tool_calls": [
                {
                    "id": "a",
                    "type": "function",
                    "function": {"name": "look", "arguments": '{"city":"Rom","n":1}'},
                }
            ],
        },
        {"role": "tool", "tool_call_id": "a", "content": "done"},
    ]


def test_arguments_keep_the_order_of_their_keys() -> None:
    found = said("go", assistant(use("a", b=1, a=2)), [result("a")])
    assert found[1]["tool_calls"][0]["function"]["arguments"] == '{"b":1,"a":2}'
    assert found[1]["content"] is None


@pytest.mark.parametrize(
    "turns",
    [
        [[result("b", "2"), result("a", "1"), text("and?")]],
        [[text("and?"), result("b", "2"), result("a", "1")]],
        [[result("b", "2")], [text("and?"), result("a", "1")]],
        [[result("a", "1")], [result("b", "2")], [text("and?")]],
    ],
)
def test_results_follow_their_calls(turns: list[Any]) -> None:
    found = said("go", assistant(use("a"), use("b")), *turns)
    assert [message.get("tool_call_id") for message in found[2:]] == ["a", "b", None]
    assert [message["content"] for message in found[2:]] == ["1", "2", "and?"]


def test_results_that_are_not_all_there_keep_their_order() -> None:
    found = said("go", assistant(use("a"), use("b"), use("c")), [result("c"), result("a")])
    assert [message["tool_call_id"] for message in found[2:]] == ["c", "a"]


def test_what_comes_beside_results_comes_after_them_in_order() -> None:
    reminder = {"role": "system", "content": "note"}
    found = said(
        "go", assistant(use("a"), use("b")), [text("x"), result("a")], reminder, [result("b"), text("y")]
    )
    assert [message["role"] for message in found[2:]] == ["tool", "tool", "user", "system", "user"]
    assert [message["content"] for message in found[4:]] == ["x", "note", "y"]


def test_a_result_may_answer_an_earlier_turn() -> None:
    found = said("go", assistant(use("a")), "wait", assistant("waiting"), [result("a")])
    assert found[-1] == {"role": "tool", "tool_call_id": "a", "content": "done"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("ok", "ok"),
        ([text("ok")], "ok"),
        ([text("o"), text("k")], [text("o"), text("k")]),
        ([], ""),
        (None, ""),
        ([{"type": "tool_reference", "tool_name": "look"}], "look"),
    ],
)
def test_contents_of_results(content: Any, expected: Any) -> None:
    assert said("go", assistant(use("a")), [result("a", content)])[-1]["content"] == expected


def test_a_failed_result_is_told_by_its_text_alone() -> None:
    call = decode(body("go", assistant(use("a")), [result("a", "no", is_error=True)]))
    assert call.ignored == ["tool_result.is_error"]
    assert decode(body("go", assistant(use("a")), [result("a", "no", is_error=False)])).ignored == []


def test_thinking_is_the_reasoning_of_its_turn() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    redacted = {"type": "redacted_thinking", "data": "x"}
    call = decode(body("go", assistant(thought, redacted, "yes"), "why?"))
    assert call.hub["messages"][1] == {"role": "assistant", "content": "yes", "reasoning_content": "hm"}
    assert call.ignored == ["messages.redacted_thinking"]
    omitted = {**thought, "thinking": ""}
    assert "reasoning_content" not in said("go", assistant(omitted, "yes"), "why?")[1]


def test_the_start_of_a_reply_is_gone_on_with() -> None:
    found = hub("go", assistant("The answer is"))
    assert (found["continue_final_message"], found["add_generation_prompt"]) == (True, False)
    assert found["messages"][-1] == {"role": "assistant", "content": "The answer is"}
    assert "continue_final_message" not in hub("go", assistant("")), "nothing to go on with"
    assert said("go", assistant("")) == said("go")
    assert said("go", assistant(""), "more")[1] == {"role": "assistant", "content": ""}, (
        "a silent turn is a turn"
    )


def test_images_and_documents_are_passed_on() -> None:
    pdf = {"type": "base64", "media_type": "application/pdf", "data": "aGk="}
    blocks = [
        text("see"),
        {"type": "image", "source": PNG},
        {"type": "image", "source": {"type": "url", "url": "http://x/y.png"}},
        {"type": "document", "source": pdf, "title": "T"},
        {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "plain"}},
        {"type": "document", "source": {"type": "content", "content": [text("inner")]}},
        {"type": "document", "source": {"type": "content", "content": "bare"}},
        {"type": "search_result", "title": "t", "source": "s", "content": [text("found")]},
    ]
    call = decode(body(blocks))
    assert call.hub["messages"][0]["content"] == [
        text("see"),
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        {"type": "image_url", "image_url": {"url": "http://x/y.png"}},
        {"type": "file", "file": {"file_data": "data:application/pdf;base64,aGk="}},
        *map(text, ["plain", "inner", "bare", "t", "s", "found"]),
    ]
    assert call.ignored == ["document.title"]
    assert said("go", assistant(use("a")), [result("a", [{"type": "image", "source": PNG}])])[-1][
        "content"
    ] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]


# Tools and parameters


def test_tools_are_functions() -> None:
    assert hub(tools=[{**TOOL, "strict": True, "type": "custom"}])["tools"] == [
        {
            "type": "function",
            "function": {
                "name": "look",
                "description": "Looks.",
                "parameters": {"type": "object"},
                "strict": True,
            },
        }
    ]


def test_tools_of_the_provider_are_dropped_and_recorded() -> None:
    search, bash = (
        {"type": "web_search_20250305", "name": "web_search"},
        {"type": "bash_20250124", "name": "bash"},
    )
    call = decode(body(tools=[search, {**TOOL, "defer_loading": True}, bash]))
    assert [tool["function"]["name"] for tool in call.hub["tools"]] == ["look"]
    assert set(call.ignored) == {"tools.web_search_20250305", "tools.bash_20250124", "tools.defer_loading"}
    assert "tools" not in hub(tools=[search], tool_choice={"type": "auto"})
    assert "tool_choice" not in hub(tools=[search], tool_choice={"type": "auto"})
    for choice in ({"type": "any"}, {"type": "tool", "name": "web_search"}):
        assert "served here" in str(refusal(body(tools=[search], tool_choice=choice)))


def test_tools_defined_in_the_conversation_are_shown() -> None:
    added = {
        "type": "tool_addition",
        "tool": {"type": "tool_definition", "definition": {**TOOL, "name": "new"}},
    }
    removed = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "look"}}
    call = decode(body("hi", {"role": "system", "content": [added, removed]}, tools=[TOOL]))
    assert [tool["function"]["name"] for tool in call.hub["tools"]] == ["look", "new"]
    assert call.hub["messages"] == [{"role": "user", "content": "hi"}]
    assert call.ignored == ["messages.tool_removal"]


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"type": "auto"}, {"tool_choice": "auto"}),
        ({"type": "none"}, {"tool_choice": "none"}),
        ({"type": "any"}, {"tool_choice": "required"}),
        (
            {"type": "tool", "name": "look"},
            {"tool_choice": {"type": "function", "function": {"name": "look"}}},
        ),
        (
            {"type": "auto", "disable_parallel_tool_use": True},
            {"tool_choice": "auto", "parallel_tool_calls": False},
        ),
    ],
)
def test_choices(choice: dict[str, Any], expected: dict[str, Any]) -> None:
    found = hub(tools=[TOOL], tool_choice=choice)
    assert {name: found[name] for name in found.keys() & {"tool_choice", "parallel_tool_calls"}} == expected


def test_parameters() -> None:
    found = hub(temperature=0.5, top_p=0.9, top_k=5, stop_sequences=["X"], stream=True)
    del found["messages"]
    assert found == {
        "max_tokens": 8,
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "stop": ["X"],
        "stream": True,
    }
    assert not decode(body(stream=False)).stream


@pytest.mark.parametrize(
    ("fields", "expected", "ignored"),
    [
        ({}, {}, []),
        ({"thinking": {"type": "disabled"}}, {"chat_template_kwargs": {"enable_thinking": False}}, []),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 2048}},
            {"chat_template_kwargs": {"enable_thinking": True}},
            ["thinking.budget_tokens"],
        ),
        (
            {"thinking": {"type": "adaptive"}, "output_config": {"effort": "high"}},
            {"reasoning_effort": "high"},
            ["thinking.type"],
        ),
        ({"output_config": {"effort": "high"}}, {}, ["output_config.effort"]),
        (
            {"thinking": {"type": "disabled"}, "chat_template_kwargs": {"enable_thinking": True, "x": 1}},
            {"chat_template_kwargs": {"enable_thinking": True, "x": 1}},
            [],
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"a": 1}}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "output", "schema": {"a": 1}},
                }
            },
            [],
        ),
        ({"structured_outputs": {"regex": "a"}}, {"structured_outputs": {"regex": "a"}}, []),
        ({"metadata": {"user_id": "u"}}, {}, ["metadata"]),
        ({"service_tier": "auto"}, {}, ["service_tier"]),
        ({"seed": 3}, {}, ["seed"]),
        ({"n": 2}, {}, ["n"]),
        ({"container": None}, {}, []),
    ],
)
def test_other_fields(fields: dict[str, Any], expected: dict[str, Any], ignored: list[str]) -> None:
    call = decode(body(**fields))
    assert call.hub == {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 8, **expected}
    assert call.ignored == ignored


def test_counting_needs_no_limit() -> None:
    document = body(system="s", tools=[TOOL])
    del document["max_tokens"]
    assert "max_tokens" not in messages.decode_count(orjson.dumps(document))
    assert refusal(document).param == "max_tokens"


# What is refused

BAD_INPUT: list[tuple[Any, str | None]] = [
    (b"{", None),
    (b"[]", None),
    (b'{"model": "m", "max_tokens": 1, "messages": "\xff"}', None),
    (b'{"model": "m", "max_tokens": 1, "messages": [{"role": "user", "content": "\\ud800"}]}', None),
    (body(model=None), "model"),
    (body(model=3), "model"),
    (body(messages=[]), "messages"),
    (body(messages="hi"), "messages"),
    (body(messages=["hi"]), "messages.0"),
    (body({"role": "robot", "content": "x"}), "messages.0.role"),
    (body({"role": "user"}), "messages.0.content"),
    (body(""), "messages.0.content"),
    (body([]), "messages.0.content"),
    (body([text("")]), "messages.0.content"),
    (body(["hi"]), "messages.0.content"),
    (body([{"type": "text"}]), "messages.0.content.0.text"),
    (body([{"type": "audio"}]), "messages.0.content.0.type"),
    (
        body([{"type": "image", "source": {"type": "file", "file_id": "f"}}]),
        "messages.0.content.0.source.type",
    ),
    (body([{"type": "image"}]), "messages.0.content.0.source"),
    (body([{"type": "thinking", "thinking": "x"}]), "messages.0.content.0.type"),
    (body([result("a")]), "messages.0.content.0.tool_use_id"),
    (body([result("a")], assistant(use("a")), "x"), "messages.0.content.0.tool_use_id"),
    (body("go", assistant(use("a")), [result("b")]), "messages.2.content.0.tool_use_id"),
    (body("go", assistant(use("a"))), "messages"),
    (body("go", assistant({**use("a"), "input": "x"})), "messages.1.content.0.input"),
    (body("go", assistant({**use("a"), "id": None})), "messages.1.content.0.id"),
    (body("go", assistant({"type": "server_tool_use", "id": "a"})), "messages.1.content.0.type"),
    (body(max_tokens=None), "max_tokens"),
    (body(max_tokens=0), "max_tokens"),
    (body(max_tokens=-5), "max_tokens"),
    (body(max_tokens=True), "max_tokens"),
    (body(max_tokens="9"), "max_tokens"),
    (body(stream="yes"), "stream"),
    (body(temperature="hot"), "temperature"),
    (body(top_k=1.5), "top_k"),
    (body(stop_sequences="X"), "stop_sequences"),
    (body(stop_sequences=[1]), "stop_sequences"),
    (body(system=3), "system"),
    (body(system=[{"type": "image", "source": PNG}]), "system.0.type"),
    (body(tools={}), "tools"),
    (body(tools=["x"]), "tools.0"),
    (body(tools=[{"name": "x"}]), "tools.0.input_schema"),
    (body(tools=[{"input_schema": {}}]), "tools.0.name"),
    (body(tool_choice="auto"), "tool_choice"),
    (body(tool_choice={"type": "maybe"}), "tool_choice.type"),
    (body(tool_choice={"type": "any"}), "tool_choice"),
    (body(tools=[TOOL], tool_choice={"type": "tool", "name": "x"}), "tool_choice.name"),
    (body(thinking="on"), "thinking"),
    (body(thinking={"type": "deep"}), "thinking.type"),
    (body(output_config={"effort": "extreme"}), "output_config.effort"),
    (body(output_config={"format": {"type": "yaml"}}), "output_config.format"),
]


@pytest.mark.parametrize(("document", "param"), BAD_INPUT)
def test_bad_input_is_refused_with_the_field_at_fault(document: Any, param: str | None) -> None:
    error = refusal(document)
    assert (error.status, error.param) == (400, param)
    assert param is None or str(error).startswith(f"{param}: ")


def test_input_nested_too_deeply_is_refused() -> None:
    document = orjson.dumps(body("go", assistant(use("a")), [result("a")]))
    nested = b'{"a":' * 700 + b"{}" + b"}" * 700
    error = refusal(document.replace(b'"input":{}', b'"input":' + nested))
    assert error.param == "messages.1.content.0.input"


# The same said in other ways
