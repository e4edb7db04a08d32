"""Recorded traffic of harnesses that speak the Responses API: every request decodes, and nothing of it is lost."""

from __future__ import annotations

import json
from typing import Any

import pytest

from proxy.dialects import responses
from proxy.dialects.base import Target
from tests.corpus.reencode_responses import plain, reencode
from tests.corpus.traffic import requests

FILES = ["codex", "codex-e500", "codex-sub", "openai-agents", "agent-framework", "pi-responses"]
CODEX = {"client_metadata", "prompt_cache_key", "reasoning.summary", "tools.web_search"}
IGNORED = {
    "codex": CODEX | {"tools.namespace.description"},
    "pi-responses": {"prompt_cache_key", "reasoning.summary"},
    "openai-agents": set[str](),
    "agent-framework": set[str](),
}
"""What each harness sends that has no meaning here."""
REQUESTS = [(name, index, request["body"]) for name in FILES for index, request in enumerate(requests(name))]
IDS = [f"{name}-{index}" for name, index, _ in REQUESTS]


def decode(body: dict[str, Any]) -> responses.ResponsesCall:
    return responses.decode(json.dumps(body).encode(), Target("spn_" + "0" * 26, 1.0))


@pytest.mark.parametrize(("name", "index", "body"), REQUESTS, ids=IDS)
def test_the_hub_says_the_same(name: str, index: int, body: dict[str, Any]) -> None:
    call = decode(body)
    namespaces = [tool["name"] for tool in body["tools"] if tool["type"] == "namespace"]
    assert reencode(call.hub, "instructions" in body, namespaces) == plain(body)
    expected = IGNORED[name.removesuffix("-e500").removesuffix("-sub")]
    if (name, index) == ("codex-sub", 2):  # a sub-agent has no tools for sub-agents
        expected = CODEX
    assert set(call.ignored) == expected
    previous = body.get("previous_response_id")
    assert call.previous == (previous and previous.replace("resp_", "spn_"))
    assert call.stored == body.get("store", True)


def test_codex_calls_a_tool_of_a_namespace() -> None:
    """The echoed call has the name that the tool list gives it."""
    hub = decode(requests("codex-sub")[1]["body"]).hub
    call = next(message for message in hub["messages"] if message.get("tool_calls"))["tool_calls"][0]
    assert call["function"]["name"] == "multi_agent_v1__spawn_agent"
    assert call["function"]["name"] in {tool["function"]["name"] for tool in hub["tools"]}


@pytest.mark.parametrize("name", ["codex", "codex-e500", "openai-agents", "pi-responses"])
def test_a_turn_extends_the_one_before(name: str) -> None:
    bodies = [request["body"] for request in requests(name)]
    before, after = (decode(body).hub["messages"] for body in (bodies[0], bodies[-1]))
    assert after[: len(before)] == before
    assert [message["role"] for message in after[len(before) :]] == ["assistant", "tool"]


def test_a_retry_is_the_same_request() -> None:
    """Codex after a 500: but for the order of its labels the body is the same."""
    first, second, third, _ = (decode(request["body"]).hub for request in requests("codex-e500"))
    assert first == second == third
