"""Recorded gemini-cli traffic: every request decodes, and nothing but listed fields is lost in the hub."""

from __future__ import annotations

import copy
from typing import Any

import orjson
import pytest

from proxy.dialects import gemini
from proxy.dialects.base import Target
from proxy.dialects.gemini import paths
from proxy.dialects.gemini.reply import GeminiCall
from tests.corpus.reencode_gemini import reencode
from tests.corpus.traffic import requests

IGNORED = ["contents.parts.thoughtSignature", "generationConfig.thinkingConfig.thinkingBudget"]
"""All that is not in the hub: a signature that only Google can check, and a budget that no engine here keeps."""
TRAFFIC = requests("gemini-cli")


def decode(request: dict[str, Any]) -> GeminiCall:
    path = paths.read(request["path"], request["query"].encode())
    assert path is not None and path.known
    return gemini.decode(orjson.dumps(request["body"]), path.target(Target("spn_1", 0.0)))


def without_ignored(body: dict[str, Any]) -> dict[str, Any]:
    body = copy.deepcopy(body)
    for content in body["contents"]:
        for part in content["parts"]:
            part.pop("thoughtSignature", None)
    body["generationConfig"]["thinkingConfig"].pop("thinkingBudget", None)
    return body


def test_the_corpus_is_there() -> None:
    assert len(TRAFFIC) == 2


@pytest.mark.parametrize("request_", TRAFFIC)
def test_the_hub_holds_what_was_sent(request_: dict[str, Any]) -> None:
    call = decode(request_)
    assert call.hub["model"] == "gemini-2.5-pro" and call.stream and call.untrainable is None
    assert set(call.ignored) <= set(IGNORED)
    assert reencode(call.hub, thoughts=True) == without_ignored(request_["body"])


def test_the_second_request_continues_the_first() -> None:
    """What lineage rests on: the messages of the first, the reply, the results."""
    first, second = (decode(request).hub for request in TRAFFIC)
    assert second["messages"][: len(first["messages"])] == first["messages"]
    assert second["tools"] == first["tools"]
    roles = [message["role"] for message in second["messages"]]
    assert roles == ["system", "user", "assistant", "tool"]
    _, _, reply, result = second["messages"]
    assert result["tool_call_id"] == reply["tool_calls"][0]["id"]


def test_a_hub_written_again_decodes_to_itself() -> None:
    for request in TRAFFIC:
        hub = decode(request).hub
        again = orjson.dumps(reencode(hub, thoughts=True))
        assert gemini.decode(again, Target("spn_1", 0.0, model=hub["model"], stream=True)).hub == hub
