"""What harnesses really send to the Messages API decodes, and the hub holds all of it but for named fields."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.dialects import messages
from proxy.dialects.base import Target
from tests.corpus.reencode_messages import normal, reencode
from tests.corpus.traffic import requests

CLAUDE_CODE = {"metadata", "context_management", "thinking.type"}
TITLE = {"metadata", "output_config.effort"}
"""Claude Code asks for a title without thinking, so its effort is not passed on."""
IGNORED: dict[str, list[set[str]]] = {
    "claude-code": [TITLE, CLAUDE_CODE, CLAUDE_CODE],
    "claude-code-latest": [CLAUDE_CODE | {"thinking.display", "tools.defer_loading"}] * 2,
    "claude-code-e500": [TITLE, CLAUDE_CODE, TITLE, CLAUDE_CODE, CLAUDE_CODE],
    "opencode-anthropic": [set()] * 3,
    "pi-anthropic": [{"tools.eager_input_streaming"}] * 2,
    "pydantic-ai-anthropic": [set()] * 2,
}
"""The whole list of what the hub does not hold, beside what ``normal`` calls equal."""


def bodies(name: str) -> list[dict[str, Any]]:
    return [request["body"] for request in requests(name) if request["method"] == "POST"]


def decode(body: dict[str, Any]) -> messages.MessagesCall:
    return messages.decode(orjson.dumps(body), Target(span_id="spn_x", created_at=0.0))


@pytest.mark.parametrize("name", IGNORED)
def test_the_hub_holds_what_was_sent(name: str) -> None:
    for body, ignored in zip(bodies(name), IGNORED[name], strict=True):
        call = decode(body)
        assert set(call.ignored) == ignored
        assert reencode(call, body) == normal(body)


@pytest.mark.parametrize("name", ["claude-code", "claude-code-latest", "opencode-anthropic", "pi-anthropic"])
def test_the_next_turn_continues_the_last(name: str) -> None:
    """Content flips between string and blocks and ``cache_control`` moves, but the hub's messages only grow."""
    before, after = (decode(body).hub for body in bodies(name)[-2:])
    count = len(before["messages"])
    assert before["tools"] == after["tools"]
    assert after["messages"][:count] == before["messages"]
    assert [message["role"] for message in after["messages"][count:]] == ["assistant", "tool"]


def test_a_title_is_asked_for_in_json() -> None:
    call = decode(bodies("claude-code")[0])
    assert call.hub["response_format"]["json_schema"]["schema"]["required"] == ["title"]
    assert "reasoning_effort" not in call.hub


def test_thinking_harnesses_pass_their_effort_on() -> None:
    assert decode(bodies("claude-code")[1]).hub["reasoning_effort"] == "high"
