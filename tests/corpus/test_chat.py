"""Recorded chat completions: every request decodes, and the hub is what the harness sent."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from proxy.contract import apply_training
from proxy.dialects import chat
from proxy.dialects.base import Target
from tests.corpus.traffic import FOLDER, requests

PATH = "/v1/chat/completions"


def recorded() -> list[tuple[str, int, dict[str, Any]]]:
    """Harness, place in its file, and body of every chat completion."""
    return [
        (file.stem, place, request["body"])
        for file in sorted(FOLDER.glob("*.jsonl"))
        for place, request in enumerate(requests(file.stem))
        if request["path"] == PATH
    ]


def test_the_corpus_is_there() -> None:
    harnesses = {name for name, _, _ in recorded()}
    assert len(harnesses) == 28 and {"opencode", "qwen-code", "mini-swe-agent", "terminus2"} <= harnesses


@pytest.mark.parametrize(
    ("name", "place", "body"), recorded(), ids=lambda value: "" if isinstance(value, dict) else None
)
def test_the_hub_is_the_request(name: str, place: int, body: dict[str, Any]) -> None:
    call = chat.decode(orjson.dumps(body), Target("spn_1", 0.0))
    assert call.hub == body
    assert call.stream is bool(body.get("stream"))
    assert (call.ignored, call.previous, call.untrainable) == ([], None, None)


UNTRAINABLE = {("pydantic-ai-structured", place): "forced_tool_choice" for place in (0, 1)}
"""What the sampling contract refuses to train on, of all that was recorded."""


def test_what_of_it_can_be_trained_on() -> None:
    reasons = {
        (name, place): reason
        for name, place, body in recorded()
        if (reason := apply_training(body, {}).untrainable)
    }
    assert reasons == UNTRAINABLE
