"""Random replies of an engine, and the official client reading what the Responses dialect makes of them."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
from hypothesis import strategies as st

from proxy.dialects import responses
from proxy.dialects.base import Target
from proxy.dialects.responses import ResponsesCall

KEY = "0abcdefghjkmnpqrstvwxyz012"
USAGE = {"prompt_tokens": 11, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "name": "read", "parameters": {"type": "object", "properties": {}}, "strict": False},
    {
        "type": "namespace",
        "name": "crm",
        "description": "",
        "tools": [{"type": "function", "name": "find"}, {"type": "custom", "name": "query"}],
    },
    {"type": "custom", "name": "patch", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
    {"type": "web_search"},
]
CUSTOM = {"patch", "crm__query"}

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=30)
json_values = st.dictionaries(texts, st.one_of(texts, st.integers(), st.none()), max_size=3)


@st.composite
def tool_calls(draw: st.DrawFn, number: int, tidy: bool) -> dict[str, Any]:
    name = draw(st.sampled_from(["read", "crm__find", "crm__query", "patch", "nobody_gave_it"]))
    if name in CUSTOM:
        value: Any = {"input": draw(texts)}
    else:
        value = draw(json_values)
    spaced = draw(st.booleans())
    written = json.dumps(value, ensure_ascii=draw(st.booleans()), separators=None if spaced else (",", ":"))
    if not tidy and draw(st.booleans()):
        written = written[: draw(st.integers(0, len(written)))]
    identifier = draw(st.sampled_from([f"call-{number}", None])) if not tidy else f"call-{number}"
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": written}}


@st.composite
def messages(draw: st.DrawFn, tidy: bool = False) -> dict[str, Any]:
    """An assistant message as an engine sends it. ``tidy``: its calls are whole and have ids."""
    count = draw(st.integers(0, 3))
    message: dict[str, Any] = {"role": "assistant", "content": draw(st.one_of(st.none(), texts))}
    if draw(st.booleans()):
        message[draw(st.sampled_from(["reasoning", "reasoning_content"]))] = draw(texts)
    if count:
        message["tool_calls"] = [draw(tool_calls(number, tidy)) for number in range(count)]
    return message


def pieces(draw: st.DrawFn, text: str) -> list[str]:
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


@st.composite
def chunkings(draw: st.DrawFn, message: dict[str, Any], finish_reason: str) -> list[dict[str, Any]]:
    """The message as the chunks of a stream, in the order in which vLLM sends its parts."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    for name in ("reasoning", "reasoning_content", "content"):
        deltas += [{name: piece} for piece in pieces(draw, message.get(name) or "")]
        deltas += [{}] * draw(st.integers(0, 1))
    for index, call in enumerate(message.get("tool_calls") or ()):
        head = {
            "index": index,
            "id": call["id"],
            "type": "function",
            "function": {"name": call["function"]["name"]},
        }
        fragments = [head]
        for piece in pieces(draw, call["function"]["arguments"]):
            fragments.append({"index": index, "function": {"arguments": piece}})
        if draw(st.booleans()) and len(fragments) > 1:
            head["function"] |= fragments.pop(1)["function"]
        deltas += [{"tool_calls": [fragment]} for fragment in fragments]
    chunks = [chunk(delta) for delta in deltas]
    chunks[-1]["choices"][0]["finish_reason"] = finish_reason
    return [*chunks, {"model": "m", "choices": [], "usage": USAGE}]


def chunk(delta: dict[str, Any], **choice: Any) -> dict[str, Any]:
    return {"model": "m", "choices": [{"index": 0, "delta": delta, "finish_reason": None, **choice}]}


def whole_reply(message: dict[str, Any], finish_reason: str = "stop", **choice: Any) -> dict[str, Any]:
    choices = [{"index": 0, "message": message, "finish_reason": finish_reason, **choice}]
    return {"model": "m", "choices": choices, "usage": USAGE}


def decode(key: str = KEY, **fields: Any) -> ResponsesCall:
    body = {"model": "m", "input": "hi", "tools": TOOLS, **fields}
    return responses.decode(json.dumps(body).encode(), Target("spn_" + key, 1_700_000_000.5))


def answer_whole(call: ResponsesCall, reply: dict[str, Any]) -> dict[str, Any]:
    return json.loads(call.whole(reply))


def answer_stream(call: ResponsesCall, chunks: list[dict[str, Any]]) -> bytes:
    return b"".join(call.chunk(chunk) for chunk in chunks) + call.end()


def client_over(body: bytes) -> openai.OpenAI:
    """The official client, to whom every call is answered with this stream."""
    headers = {"content-type": "text/event-stream"}
    transport = httpx.MockTransport(lambda _: httpx.Response(200, headers=headers, content=body))
    return openai.OpenAI(
        base_url="http://test/v1", api_key="k", http_client=httpx.Client(transport=transport)
    )


def client_events(body: bytes) -> list[Any]:
    """What the official client's stream makes of the events: it checks their order and keeps the snapshot."""
    with client_over(body) as client, client.responses.stream(model="m", input="hi") as stream:
        return list(stream)
