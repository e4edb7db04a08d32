"""Recorded requests as the spans that the proxy would have written, for lineage.

The files hold no replies. A request's reply is what the next request of its line sends back; where none does, one is
invented that occurs nowhere else. Calls follow one another every ten seconds and last five, but for those said to run
at once.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from proxy.dialects import chat, gemini, messages, responses
from proxy.dialects.base import Dialect, Target
from proxy.dialects.gemini import paths as gemini_paths
from proxy.thread import thread_of
from spanlog.blobs import RAW
from spanlog.canonical import canonical_message, digest
from spanlog.lineage import LineageSpan
from spanlog.records import SpanRecord
from spanlog.stored import Stored
from tests.corpus.traffic import requests

Message = dict[str, Any]
DIALECTS: dict[str, Dialect] = {
    "/v1/chat/completions": chat,
    "/v1/messages": messages,
    "/v1/responses": responses,
}


def replay(
    name: str,
    *,
    failed: Collection[int] = (),
    at_once: Mapping[int, int] = {},
    says: Mapping[int, Message] = {},
) -> list[LineageSpan]:
    """Spans of ``traffic/NAME.jsonl``, with ids ``0``, ``1``... by request; requests for nothing are left out.

    ``failed``: requests that got an error. ``at_once``: request -> the one that it began together with. ``says``:
    replies that no later request sends back as they were.
    """
    recorded = [one for one in requests(name) if one["method"] == "POST"]
    hubs: list[dict[str, Any]] = []
    for one in recorded:
        hubs.append(decode(one, hubs[-1]["messages"] if hubs else [], says.get(len(hubs) - 1)))
    return [
        span(number, hub, recorded[number], failed, at_once, says.get(number) or sent_back(number, hubs))
        for number, hub in enumerate(hubs)
    ]


def decode(request: dict[str, Any], before: list[Message], said: Message | None) -> dict[str, Any]:
    """A request in hub terms. ``before`` and ``said``: what a request that names a stored reply continues."""
    raw, target = json.dumps(request["body"]).encode(), Target("spn_1", 0.0)
    path = gemini_paths.read(request["path"], request["query"].encode())
    if path is not None:
        return gemini.decode(raw, path.target(target)).hub
    call = DIALECTS[request["path"]].decode(raw, target)
    if call.previous is not None:
        assert said is not None
        call.resume([*(message for message in before if message["role"] != "system"), said])
    return call.hub


def sent_back(number: int, hubs: list[dict[str, Any]]) -> Message | None:
    """The reply to a request as the first later one that continues its history has it."""
    asked = digests(hubs[number])
    for later in hubs[number + 1 :]:
        if digests(later)[: len(asked)] == asked and len(later["messages"]) > len(asked):
            message = later["messages"][len(asked)]
            return message if message["role"] == "assistant" else None
    return None


def digests(hub: dict[str, Any]) -> list[bytes]:
    return [digest(canonical_message(message)) for message in hub["messages"]]


def whole(value: dict[str, Any]) -> Stored:
    return Stored(whole=(RAW, json.dumps(value).encode()))


def span(
    number: int,
    hub: dict[str, Any],
    request: dict[str, Any],
    failed: Collection[int],
    at_once: Mapping[int, int],
    said: Message | None,
) -> LineageSpan:
    started_at = 10.0 * at_once.get(number, number) + 0.01 * (number in at_once)
    message = said or {"role": "assistant", "content": f"invented reply, number {number}"}
    headers = [(key.lower().encode(), value.encode()) for key, value in request["headers"].items()]
    record = SpanRecord(
        id=str(number),
        rollout_id="r",
        policy_id="p",
        engine_id=None,
        dialect="chat",
        mode="observe",
        stream=False,
        status="upstream_error" if number in failed else "ok",
        delivery="sampled",
        trainable=True,
        untrainable_reason=None,
        parent_id=None,
        fork_cause=None,
        fork_token=None,
        thread=thread_of(headers),
        shared_tokens=0,
        prompt_tokens=None,
        completion_tokens=None,
        logprobs=None,
        version_low=None,
        version_high=None,
        oldest_version=None,
        reply=None if number in failed else {"message": message},
        context_hash=None,
        sampling={},
        stripped=[],
        finish_reason="stop",
        stop_reason=None,
        upstream_id=None,
        http_status=200,
        error=None,
        stored_request=whole(request["body"]),
        stored_hub=whole(hub),
        started_at=started_at,
        first_token_at=None,
        ended_at=started_at + 5.0,
    )
    return LineageSpan.from_record(record)
