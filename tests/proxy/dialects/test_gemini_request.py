"""Gemini requests as chat completions: contents, tools, generation config, paths, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects import gemini
from proxy.dialects.base import BadRequest, Target
from proxy.dialects.gemini import paths
from proxy.dialects.gemini.reply import GeminiCall
from proxy.dialects.gemini.schema import json_schema

TARGET = Target("spn_1", 0.0, model="gem", stream=False)
HI = {"role": "user", "parts": [{"text": "hi"}]}


def decode(*contents: Any, **fields: Any) -> GeminiCall:
    return gemini.decode(json.dumps({"contents": list(contents) or [HI], **fields}).encode(), TARGET)


def messages(*contents: Any) -> list[dict[str, Any]]:
    return decode(*contents).hub["messages"]


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "parts": list(parts)}


def model(*parts: Any) -> dict[str, Any]:
    return {"role": "model", "parts": list(parts)}


def called(name: str, call_id: str | None = None, **arguments: Any) -> dict[str, Any]:
    return {"functionCall": {"name": name, "args": arguments, **({"id": call_id} if call_id else {})}}


def answered(name: str, output: Any, call_id: str | None = None) -> dict[str, Any]:
    response = {"name": name, "response": output, **({"id": call_id} if call_id else {})}
    return {"functionResponse": response}


def call(call_id: str, name: str, arguments: str = "{}") -> dict[str, Any]:
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_a_plain_request() -> None:
    found = decode(HI, systemInstruction={"parts": [{"text": "Be brief."}], "role": "user"})
    assert found.hub == {
        "model": "gem",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
        "stream": False,
    }
    assert (found.ignored, found.untrainable, found.stream) == ([], None, False)


@pytest.mark.parametrize("system", ["Be brief.", {"parts": [{"text": "Be brief."}]}, {"parts": []}, ""])
def test_system_instructions(system: Any) -> None:
    said = [] if system in ("", {"parts": []}) else [{"role": "system", "content": "Be brief."}]
    assert decode(HI, systemInstruction=system).hub["messages"][:-1] == said


def test_snake_case_is_read_too() -> None:
    found = decode(
        user({"inline_data": {"mime_type": "image/png", "data": "QUJD"}}),
        system_instruction={"parts": [{"text": "x"}]},
        tools=[{"function_declarations": [{"name": "f", "parameters_json_schema": {"a_b": {}}}]}],
        tool_config={"function_calling_config": {"mode": "NONE"}},
        generation_config={"max_output_tokens": 5, "top_p": 0.5},
        safety_settings=[],
    )
    assert found.hub["messages"][0]["content"] == "x"
    assert found.hub["messages"][1]["content"][0]["image_url"] == {"url": "data:image/png;base64,QUJD"}
    assert found.hub["tools"][0]["function"]["parameters"] == {"a_b": {}}, (
        "names in a schema are the caller's"
    )
    assert (found.hub["max_tokens"], found.hub["top_p"], found.hub["tool_choice"]) == (5, 0.5, "none")
    assert found.ignored == ["safetySettings"]


def test_a_turn_of_the_model_is_one_message_however_it_was_cut() -> None:
    expected = [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "so it is",
            "reasoning_content": "hmm, well",
            "tool_calls": [call("call_0", "f", '{"x":1}'), call("call_1", "g")],
        },
    ]
    thought = {"text": "hmm, ", "thought": True, "thoughtSignature": "c2ln"}
    parts = [thought, {"text": "well", "thought": True}, {"text": "so "}, {"text": "it is"}]
    parts += [called("f", x=1), called("g")]
    assert messages(HI, model(*parts)) == expected
    assert messages(HI, *[model(part) for part in parts]) == expected
    assert messages(HI, model(*parts[:3]), model(), model(*parts[3:])) == expected


def test_a_turn_with_calls_alone_has_no_content() -> None:
    assert messages(HI, model(called("f")))[1]["content"] is None
    assert messages(HI, model({"text": ""}))[1]["content"] == ""


def test_responses_find_their_calls_by_id_then_by_name_and_order() -> None:
    found = messages(
        HI,
        model(called("f"), called("g", "own"), called("f")),
        user(answered("g", {"output": "G"}, "own"), answered("f", {"result": 1}), {"text": "and?"}),
        user(answered("f", {}, "made up by the client")),
    )
    assert [made["id"] for made in found[1]["tool_calls"]] == ["call_0", "own", "call_2"]
    assert found[2:] == [
        {"role": "tool", "tool_call_id": "own", "name": "g", "content": "G"},
        {"role": "tool", "tool_call_id": "call_0", "name": "f", "content": '{"result":1}'},
        {"role": "user", "content": "and?"},
        {"role": "tool", "tool_call_id": "call_2", "name": "f", "content": "{}"},
    ]


def test_ids_depend_on_the_place_in_the_history_alone() -> None:
    first = [HI, model(called("f")), {"role": "function", "parts": [answered("f", {"output": "a"})]}]
    more = [*first, model(called("f")), user(answered("f", {"output": "b"}))]
    assert messages(*more)[: len(first)] == messages(*first)
    assert messages(*more)[-1] == {"role": "tool", "tool_call_id": "call_1", "name": "f", "content": "b"}


def test_texts_of_a_user_keep_their_borders() -> None:
    assert messages(user({"text": "a"}, {"text": "b"})) == [
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    ]
    assert len(messages(user({"text": "a"}), user({"text": "b"}))) == 2


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        (
            {"inlineData": {"mimeType": "image/png", "data": "-_8="}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,+/8="}},
        ),
        (
            {"fileData": {"mimeType": "video/mp4", "fileUri": "https://example.org/a"}},
            {"type": "video_url", "video_url": {"url": "https://example.org/a"}},
        ),
        ({"inlineData": {"mimeType": "text/plain", "data": "w6Q="}}, {"type": "text", "text": "ä"}),
    ],
)
def test_media(part: dict[str, Any], expected: dict[str, Any]) -> None:
    assert messages(user({"text": "see"}, part))[0]["content"][1] == expected


def test_media_in_a_function_response() -> None:
    response = answered("f", {"output": "seen"})
    image = {"inlineData": {"mimeType": "image/png", "data": "AA=="}}
    response["functionResponse"]["parts"] = [image]
    tool = messages(HI, model(called("f")), user(response))[-1]
    assert [part["type"] for part in tool["content"]] == ["text", "image_url"]


def test_what_googles_code_tool_left_is_text() -> None:
    parts = [
        {"text": "See:"},
        {"executableCode": {"language": "PYTHON", "code": "print(1)"}},
        {"codeExecutionResult": {"outcome": "OUTCOME_OK", "output": "1"}},
    ]
    assert messages(HI, model(*parts))[1]["content"] == "See:\n```python\nprint(1)\n```\n\n```\n1\n```\n"


def test_tools_that_google_runs_are_dropped_and_recorded() -> None:
    tools = [
        {"googleSearch": {}},
        {"functionDeclarations": [{"name": "f", "response": {}}], "codeExecution": {}},
    ]
    found = decode(HI, tools=tools)
    assert found.hub["tools"] == [{"type": "function", "function": {"name": "f"}}]
    assert found.ignored == [
        "tools.codeExecution",
        "tools.functionDeclarations.response",
        "tools.googleSearch",
    ]
    assert "tools" not in decode(HI, tools=[{"urlContext": {}}]).hub


def test_a_schema_in_capitals() -> None:
    schema = {
        "type": "OBJECT",
        "propertyOrdering": ["a", "type"],
        "properties": {
            "a": {"type": "STRING", "nullable": True, "maxLength": "9", "format": "date"},
            "type": {"type": "ARRAY", "items": {"type": "INTEGER"}, "min_items": 1},
            "c": {"anyOf": [{"type": "NUMBER"}, {"type": "BOOLEAN", "description": "d"}]},
            "d": {"type": "TYPE_UNSPECIFIED", "enum": ["x"]},
        },
        "required": ["a"],
    }
    assert json_schema(schema, "s") == {
        "type": "object",
        "properties": {
            "a": {"type": ["string", "null"], "maxLength": 9, "format": "date"},
            "type": {"type": "array", "items": {"type": "integer"}, "minItems": 1},
            "c": {"anyOf": [{"type": "number"}, {"type": "boolean", "description": "d"}]},
            "d": {"enum": ["x"]},
        },
        "required": ["a"],
    }


def test_the_generation_config() -> None:
    config = {
        "temperature": 1,
        "topP": 0.95,
        "topK": 64.0,
        "maxOutputTokens": "100",
        "candidateCount": 2,
        "stopSequences": ["END"],
        "seed": 5,
        "presencePenalty": 0.1,
        "frequencyPenalty": 0.2,
        "speechConfig": {},
        "thinkingConfig": {"includeThoughts": True, "thinkingBudget": 8192},
    }
    found = decode(HI, generationConfig=config)
    assert {
        name: value for name, value in found.hub.items() if name not in ("model", "messages", "stream")
    } == {
        "temperature": 1,
        "top_p": 0.95,
        "top_k": 64,
        "max_tokens": 100,
        "n": 2,
        "stop": ["END"],
        "seed": 5,
        "presence_penalty": 0.1,
        "frequency_penalty": 0.2,
    }
    assert found.ignored == [
        "generationConfig.speechConfig",
        "generationConfig.thinkingConfig.thinkingBudget",
    ]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"thinkingConfig": {"thinkingBudget": 0}}, {"reasoning_effort": "none"}),
        ({"thinkingConfig": {"thinkingLevel": "HIGH"}}, {"reasoning_effort": "high"}),
        ({"responseLogprobs": True, "logprobs": 3}, {"logprobs": True, "top_logprobs": 3}),
        ({"responseMimeType": "text/plain"}, {}),
        ({"responseMimeType": "application/json"}, {"response_format": {"type": "json_object"}}),
        (
            {"responseMimeType": "application/json", "responseSchema": {"type": "STRING"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "response", "schema": {"type": "string"}},
                }
            },
        ),
        (
            {"responseMimeType": "application/json", "responseJsonSchema": {"type": "STRING"}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "response", "schema": {"type": "STRING"}},
                }
            },
        ),
        (
            {"responseMimeType": "text/x.enum", "responseSchema": {"type": "STRING", "enum": ["a", "b"]}},
            {"structured_outputs": {"choice": ["a", "b"]}},
        ),
    ],
)
def test_thinking_logprobs_and_formats(config: dict[str, Any], expected: dict[str, Any]) -> None:
    hub = decode(HI, generationConfig=config).hub
    assert {
        name: value for name, value in hub.items() if name not in ("model", "messages", "stream")
    } == expected


@pytest.mark.parametrize(
    ("config", "choice", "names"),
    [
        ({}, None, ["f", "g"]),
        ({"mode": "AUTO"}, "auto", ["f", "g"]),
        ({"mode": "VALIDATED"}, "auto", ["f", "g"]),
        ({"mode": "NONE"}, "none", ["f", "g"]),
        ({"mode": "ANY"}, "required", ["f", "g"]),
        ({"mode": "ANY", "allowedFunctionNames": ["g"]}, "required", ["g"]),
    ],
)
def test_tool_choice(config: dict[str, Any], choice: str | None, names: list[str]) -> None:
    declarations = [{"name": "f"}, {"name": "g"}]
    hub = decode(
        HI,
        tools=[{"functionDeclarations": declarations}],
        toolConfig={"functionCallingConfig": config},
    ).hub
    assert (hub.get("tool_choice"), [tool["function"]["name"] for tool in hub["tools"]]) == (choice, names)


def test_a_tool_choice_without_tools_is_dropped() -> None:
    assert "tool_choice" not in decode(HI, toolConfig={"functionCallingConfig": {"mode": "AUTO"}}).hub


def test_unknown_fields_are_recorded_at_every_level() -> None:
    found = decode(
        user({"text": "hi", "videoMetadata": {}}),
        model(called("f")),
        user({"functionResponse": {"name": "f", "response": {}, "willContinue": True}}),
        labels={"a": "b"},
        toolConfig={"retrievalConfig": {}},
        generationConfig={"unheardOf": 1, "thinkingConfig": {"unheardOf": 1}},
    )
    assert found.ignored == [
        "contents.parts.functionResponse.willContinue",
        "contents.parts.videoMetadata",
        "generationConfig.thinkingConfig.unheardOf",
        "generationConfig.unheardOf",
        "labels",
        "toolConfig.retrievalConfig",
    ]


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"properties": {"a": value}}
    return value


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b"{", None),
        (b"[]", None),
        (b"\xff", None),
        (b'{"contents": [{"parts": [{"text": "\\ud800"}]}]}', None),
        ({}, "contents"),
        ({"contents": []}, "contents"),
        ({"contents": "hi"}, "contents"),
        ({"contents": ["hi"]}, "contents[0]"),
        ({"contents": [{"role": "user"}]}, "contents[0]"),
        ({"contents": [user()]}, "contents[0]"),
        ({"contents": [{"role": "system", "parts": [{"text": "a"}]}]}, "contents[0].role"),
        ({"contents": [{"role": 5, "parts": [{"text": "a"}]}]}, "contents[0].role"),
        ({"contents": [{"parts": {"text": "a"}}]}, "contents[0].parts"),
        ({"contents": [user("a")]}, "contents[0].parts[0]"),
        ({"contents": [user({})]}, "contents[0].parts[0]"),
        ({"contents": [user({"text": 5})]}, "contents[0].parts[0].text"),
        ({"contents": [user({"text": "a", "functionCall": {"name": "f"}})]}, "contents[0].parts[0]"),
        ({"contents": [user(called("f"))]}, "contents[0]"),
        ({"contents": [user(answered("f", {}))]}, "contents[0].functionResponse"),
        ({"contents": [HI, model(called("f")), user(answered("g", {}))]}, "contents[2].functionResponse"),
        ({"contents": [HI, model(called(""))]}, "contents[1].functionCall"),
        (
            {"contents": [HI, model({"functionCall": {"name": "f", "args": []}})]},
            "contents[1].functionCall.args",
        ),
        ({"contents": [HI, model({"inlineData": {"mimeType": "image/png"}})]}, "contents[1]"),
        (
            {"contents": [user({"inlineData": {"mimeType": "application/pdf"}})]},
            "contents[0].inlineData.mimeType",
        ),
        ({"contents": [user({"fileData": {"fileUri": "gs://a"}})]}, "contents[0].fileData.mimeType"),
        ({"contents": [user({"inlineData": {"mimeType": "text/plain", "data": "!"}})]}, "contents[0]"),
        ({"contents": [HI], "cachedContent": "cachedContents/x"}, "cachedContent"),
        ({"contents": [HI], "systemInstruction": {"parts": [{"inlineData": {}}]}}, "systemInstruction"),
        ({"contents": [HI], "tools": {}}, "tools"),
        ({"contents": [HI], "tools": ["f"]}, "tools"),
        ({"contents": [HI], "tools": [{"functionDeclarations": {}}]}, "tools.functionDeclarations"),
        ({"contents": [HI], "tools": [{"functionDeclarations": [{}]}]}, "tools.functionDeclarations"),
        ({"contents": [HI], "generationConfig": []}, "generationConfig"),
        ({"contents": [HI], "generationConfig": {"temperature": "hot"}}, "generationConfig.temperature"),
        ({"contents": [HI], "generationConfig": {"topK": 1.5}}, "generationConfig.topK"),
        (
            {"contents": [HI], "generationConfig": {"maxOutputTokens": True}},
            "generationConfig.maxOutputTokens",
        ),
        ({"contents": [HI], "generationConfig": {"stopSequences": [1]}}, "generationConfig.stopSequences"),
        (
            {"contents": [HI], "generationConfig": {"responseLogprobs": 1}},
            "generationConfig.responseLogprobs",
        ),
        (
            {"contents": [HI], "generationConfig": {"responseSchema": {"type": "STRING"}}},
            "generationConfig.responseMimeType",
        ),
        (
            {"contents": [HI], "generationConfig": {"thinkingConfig": {"thinkingLevel": "HUGE"}}},
            "generationConfig.thinkingConfig.thinkingLevel",
        ),
    ],
)
def test_bad_requests_name_the_field(body: Any, param: str | None) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(BadRequest) as caught:
        gemini.decode(raw, TARGET)
    assert caught.value.param == param


def test_what_is_nested_too_deep_is_refused() -> None:
    declaration = {"name": "f", "parameters": deep(100)}
    with pytest.raises(BadRequest, match="nested deeper"):
        decode(HI, tools=[{"functionDeclarations": [declaration]}])
    with pytest.raises(BadRequest, match="cannot be passed on"):
        decode(HI, model({"functionCall": {"name": "f", "args": deep(200)}}))


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/v1beta/models/gem:generateContent", "", ("gem", "generateContent", False, True)),
        (
            "/v1beta/models/a/b:7b:streamGenerateContent",
            "alt=sse",
            ("a/b:7b", "streamGenerateContent", True, True),
        ),
        ("/v1/models/gem:countTokens", "", ("gem", "countTokens", False, True)),
        ("/v1beta/models", "pageSize=5", (None, None, False, True)),
        ("/v1beta/models/gem", "", ("gem", None, False, True)),
        ("/v1beta/models/gem:embedContent", "", ("gem", "embedContent", False, False)),
        ("/v1beta/models:generateContent", "", (None, "generateContent", False, False)),
        ("/v1beta/cachedContents", "", (None, None, False, False)),
        ("/v1/models/gem", "", None),
        ("/v1/models/qwen:generate", "", None),
        ("/v1/chat/completions", "alt=sse", None),
    ],
)
def test_paths(path: str, query: str, expected: Any) -> None:
    found = paths.read(path, query.encode())
    assert expected == (found and (found.model, found.method, found.sse, found.known))


def test_the_key_in_the_query() -> None:
    found = paths.read("/v1beta/models/m:streamGenerateContent", b"key=se%2Dcret&alt=sse")
    assert found is not None and found.key == "se-cret"
    target = found.target(TARGET)
    assert (target.model, target.stream, target.array) == ("m", True, False)
    assert "cret" not in repr(found), "a secret must not reach a log by way of a message"
