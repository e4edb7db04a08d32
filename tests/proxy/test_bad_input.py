"""Bad input: each mistake gets its status in the caller's dialect at once, and whatever comes, the proxy stands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.proxy.conftest import Served, Standing
from tests.proxy.fake_engine import FakeEngine
from tests.proxy.requests_by_dialect import ROUTES

CHAT = "/v1/chat/completions"
USER = {"role": "user", "content": "hi"}


@pytest.fixture
def ready(standing: Standing) -> Served:
    return standing.calm().proxy


@pytest.fixture
def fake(standing: Standing) -> FakeEngine:
    return standing.fake


@pytest.fixture(scope="module")
def open_key(standing: Standing) -> tuple[Served, str]:
    return standing.proxy, standing.proxy.rollout()[1]


def post(proxy: Served, key: str, content: Any, path: str = CHAT) -> httpx.Response:
    headers = {"x-api-key": key, "content-type": "application/json"}
    return proxy.http.post(path, content=content, headers=headers)


def refused(response: httpx.Response, status: int, *words: str) -> dict[str, Any]:
    """In the shape of chat completions."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert all(word in error["message"] for word in words), error["message"]
    return error


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b'{"messages": [}', "not valid JSON"),
        (b"[]", "JSON object"),
        (b'"text"', "JSON object"),
        (b"null", "JSON object"),
        (b'{"messages": [{"role": "user", "content": "\xff\xfe"}]}', "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\\ud800"}]}', "not valid JSON"),
        (b'{"messages": [{"role": "user", "content": "\xed\xa0\x80"}]}', "not valid JSON"),
        (b'{"messages": NaN}', "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b'{"messages": ' + b"[" * 2000 + b"]" * 2000 + b"}", "not valid JSON"),
        (b'{"messages": [' + b'{"a":' * 400 + b"1" + b"}" * 400 + b"]}", "cannot be passed on"),
        (b"{}", "non-empty array"),
        (b'{"messages": []}', "non-empty array"),
        (b'{"messages": {}}', "non-empty array"),
        (b'{"messages": "hi"}', "non-empty array"),
        (b'{"messages": ["hi"]}', "must be an object"),
        (b'{"messages": [null]}', "must be an object"),
    ],
)
def test_what_is_no_request(ready: Served, fake: FakeEngine, body: bytes, words: str) -> None:
    rollout, key = ready.rollout()
    refused(post(ready, key, body), 400, words)
    assert fake.requests == [] and ready.spans(rollout) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("model", 7),
        ("model", ["m"]),
        ("stream", "true"),
        ("stream", 1),
        ("n", "1"),
        ("n", True),
        ("tools", {}),
        ("tools", "weather"),
        ("stream_options", []),
    ],
)
def test_fields_of_another_type(ready: Served, fake: FakeEngine, field: str, value: Any) -> None:
    _, key = ready.rollout()
    error = refused(ready.chat(key, **{field: value}), 400, f"'{field}'")
    assert error["param"] == field
    assert fake.requests == []


@pytest.mark.parametrize(
    "fields",
    [
        {"model": "any-name-at-all"},
        {"model": None},
        {"messages": [{"role": "wizard", "content": "hi"}]},
        {"messages": [{"role": "tool", "tool_call_id": "call_1", "content": "a result without a call"}]},
        {"messages": [{}]},
        {"messages": [{"role": "user", "content": None}]},
        {"max_tokens": -1},
        {"max_tokens": 10**30},
        {"temperature": "hot"},
        {"tools": [None, 7, "x", {}]},
        {"stop": {"a": 1}},
        {"response_format": 7},
        {"tool_choice": 5},
        {"a_field_of_tomorrow": {"x": [1, None]}},
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_judges_reaches_it_as_it_came(
    ready: Served, fake: FakeEngine, fields: dict[str, Any], stream: bool
) -> None:
    """Unknown models (a key has one policy: any name reaches it), unknown roles and values are the engine's to judge;
    unknown fields are passed on, and all is on record."""
    rollout, key = ready.rollout()
    assert ready.chat(key, stream=stream, **fields).status_code == 200
    owned = {"model", "temperature"}
    sent = fake.requests[-1]
    assert all(sent[name] == value for name, value in fields.items() if name not in owned | {"max_tokens"})
    assert sent["model"] == "fake-model"
    asked = ready.span(rollout).request
    assert all(asked[name] == value for name, value in fields.items() if name != "max_tokens")


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_fifty_megabytes(ready: Served, fake: FakeEngine, chunked: bool) -> None:
    """Refused by its announced length, or as soon as too much has come; the connection is not waited out."""
    _, key = ready.rollout()
    body = b'{"messages": [{"role": "user", "content": "' + b"a" * (50 << 20) + b'"}]}'

    def pieces() -> Iterator[bytes]:
        for start in range(0, len(body), 1 << 20):
            yield body[start : start + (1 << 20)]

    refused(post(ready, key, pieces() if chunked else body), 413, "SINGLETREE_MAX_BODY_BYTES")
    assert fake.requests == []
    assert ready.chat(key).status_code == 200


def test_the_control_plane_bounds_bodies_too(ready: Served) -> None:
    body = b'{"policy": "' + b"a" * (33 << 20) + b'"}'
    headers = {"authorization": "Bearer st-admin-test", "content-type": "application/json"}
    for content in (body, iter([body])):
        response = ready.http.post("/api/groups", content=content, headers=headers)
        assert response.status_code == 413
        assert set(response.json()["error"]) == {"message", "code"}


def test_compressed_bodies_are_not_unpacked(ready: Served) -> None:
    _, key = ready.rollout()
    headers = {"x-api-key": key, "content-encoding": "gzip"}
    response = ready.http.post(CHAT, content=b"\x1f\x8b" + bytes(100), headers=headers)
    refused(response, 415, "plain JSON")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
NAMES = st.sampled_from(
    [
        "role",
        "content",
        "tool_calls",
        "tool_call_id",
        "name",
        "type",
        "text",
        "function",
        "arguments",
        "id",
        "parts",
        "functionCall",
        "input",
        "tool_use_id",
        "thinking",
        "cache_control",
        "system",
    ]
)
MESSAGES = st.lists(st.dictionaries(NAMES, JSON, max_size=4) | JSON, max_size=3)
FIELDS = st.sampled_from(
    [
        "model",
        "stream",
        "n",
        "tools",
        "tool_choice",
        "stop",
        "stream_options",
        "max_tokens",
        "temperature",
        "response_format",
        "logprobs",
        "top_logprobs",
        "user",
        "metadata",
        "system",
        "thinking",
        "reasoning_effort",
        "prompt",
        "input",
        "generationConfig",
    ]
)


@pytest.mark.parametrize("name", list(ROUTES))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(FIELDS, JSON, max_size=4), messages=MESSAGES | st.none(), stream=st.booleans())
def test_no_body_is_an_error_of_the_proxy(
    open_key: tuple[Served, str], name: str, fields: dict[str, Any], messages: Any, stream: bool
) -> None:
    """Whatever JSON comes on whichever route: an answer, or an error of the caller's own in the dialect's shape."""
    proxy, key = open_key
    route = ROUTES[name]
    body = route.request(stream) | fields
    if messages is not None:
        body["contents" if "contents" in body else "messages"] = messages
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    response = post(proxy, key, content, route.url(stream))
    assert response.status_code < 500, response.text
    if response.status_code != 200:
        assert isinstance(response.json()["error"], dict)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=200) | st.text(max_size=100).map(str.encode))
def test_no_bytes_are_an_error_of_the_proxy(open_key: tuple[Served, str], content: bytes) -> None:
    proxy, key = open_key
    assert 400 <= post(proxy, key, content).status_code < 500
