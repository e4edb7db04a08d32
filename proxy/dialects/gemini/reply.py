"""Replies as candidates with parts: thoughts, text, then whole function calls.

A function call is one part, so calls are put together while a stream runs and leave with its last event, which also has
the finish reason and the usage. That costs no time: from the first complete call on, everything waits for the span's
commit anyway [I3]. Every event has at least one part, since Google's own chat sessions drop a turn with an empty one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from proxy import sse
from proxy.dialects.base import Failure, Target
from proxy.dialects.gemini.errors import error
from proxy.hub import MessageBuilder

FINISH_REASONS = {"stop": "STOP", "length": "MAX_TOKENS", "tool_calls": "STOP", "content_filter": "SAFETY"}
MALFORMED = "MALFORMED_FUNCTION_CALL"
EVENT_STREAM = b"text/event-stream; charset=utf-8"
JSON_STREAM = b"application/json; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What the caller asked to be sent, beside the answer itself."""

    thoughts: bool
    logprobs: bool


@dataclass(slots=True)
class _Candidate:
    """One choice of a stream, as far as it is not sent yet."""

    calls: MessageBuilder = field(default_factory=MessageBuilder)
    finish_reason: str | None = None
    logprobs: list[dict[str, Any]] = field(default_factory=list)
    """Those of tokens whose text has not been sent, in Google's form."""
    top_logprobs: list[dict[str, Any]] = field(default_factory=list)
    total: float = 0.0
    count: int = 0
    sent: bool = False


class GeminiCall:
    """See ``base.Call``."""

    def __init__(self, request: dict[str, Any], target: Target, wanted: Wanted, ignored: list[str]) -> None:
        self.hub = request
        self.stream = target.stream
        self.stream_type = JSON_STREAM if target.array else EVENT_STREAM
        self.ignored = ignored
        self.previous: str | None = None
        self.untrainable: str | None = None
        self._target = target
        self._wanted = wanted
        self.restart()

    def resume(self, messages: list[dict[str, Any]]) -> None:
        raise AssertionError("a Gemini request names no stored reply")

    def restart(self) -> None:
        self._candidates: dict[int, _Candidate] = {}
        self._usage: Mapping[str, Any] | None = None
        self._begun = False

    def to_hub(self, document: dict[str, Any]) -> dict[str, Any]:
        return document

    def whole(self, reply: dict[str, Any]) -> bytes:
        self._usage = reply.get("usage")
        candidates = []
        for choice in reply.get("choices") or ():
            candidate = _Candidate(finish_reason=choice.get("finish_reason"))
            message = choice["message"]
            if calls := message.get("tool_calls"):
                candidate.calls.add({"tool_calls": [{**call, "index": i} for i, call in enumerate(calls)]})
            self._take_logprobs(candidate, choice)
            parts = self._text_parts(message)
            candidates.append(self._last(choice.get("index", 0), candidate, parts))
        return orjson.dumps(self._response(candidates))

    def chunk(self, chunk: dict[str, Any]) -> bytes:
        if (usage := chunk.get("usage")) is not None:
            self._usage = usage
        candidates = []
        for choice in chunk.get("choices") or ():
            index = choice.get("index", 0)
            candidate = self._candidates.setdefault(index, _Candidate())
            delta = choice.get("delta") or {}
            if calls := delta.get("tool_calls"):
                candidate.calls.add({"tool_calls": calls})
            candidate.finish_reason = choice.get("finish_reason") or candidate.finish_reason
            self._take_logprobs(candidate, choice)
            if parts := self._text_parts(delta):
                candidate.sent = True
                candidates.append(self._candidate(index, candidate, parts))
        return self._frame(self._response(candidates)) if candidates else b""

    def end(self) -> bytes:
        candidates = [self._last(index, self._candidates[index], []) for index in sorted(self._candidates)]
        event = self._frame(self._response(candidates))
        return event + b"]" if self._target.array else event

    def error_event(self, failure: Failure) -> bytes:
        event = self._frame(error(failure))
        return event + b"]" if self._target.array else event

    def _response(self, candidates: list[dict[str, Any]]) -> dict[str, Any]:
        response: dict[str, Any] = {"candidates": candidates}
        if self._usage is not None:
            response["usageMetadata"] = _usage_metadata(self._usage)
        response["modelVersion"] = self._target.model
        response["responseId"] = self._target.span_id
        return response

    def _text_parts(self, message: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Of a whole message or of a delta: what can be sent at once."""
        parts = []
        thoughts = message.get("reasoning") or message.get("reasoning_content")
        if thoughts and self._wanted.thoughts:
            parts.append({"text": thoughts, "thought": True})
        if message.get("content"):
            parts.append({"text": message["content"]})
        return parts

    def _candidate(self, index: int, candidate: _Candidate, parts: list[dict[str, Any]]) -> dict[str, Any]:
        written: dict[str, Any] = {"content": {"parts": parts, "role": "model"}, "index": index}
        if candidate.logprobs:
            written["logprobsResult"] = {"chosenCandidates": candidate.logprobs}
            if any(step["candidates"] for step in candidate.top_logprobs):
                written["logprobsResult"]["topCandidates"] = candidate.top_logprobs
            candidate.logprobs, candidate.top_logprobs = [], []
        return written

    def _last(self, index: int, candidate: _Candidate, parts: list[dict[str, Any]]) -> dict[str, Any]:
        """The candidate with its function calls and its end; ``parts`` come first."""
        calls, malformed = _call_parts(candidate.calls.build().get("tool_calls", ()))
        parts = parts + calls
        finish_reason = FINISH_REASONS.get(candidate.finish_reason or "", "OTHER")
        written = self._candidate(index, candidate, parts or [{"text": ""}])
        written["finishReason"] = finish_reason
        if malformed and finish_reason != "MAX_TOKENS":
            written["finishReason"] = MALFORMED
            written["finishMessage"] = f"Malformed function call: {malformed}"
        if candidate.count:
            written["avgLogprobs"] = candidate.total / candidate.count
        return written

    def _take_logprobs(self, candidate: _Candidate, choice: Mapping[str, Any]) -> None:
        if not self._wanted.logprobs:
            return
        entries: list[dict[str, Any]] = (choice.get("logprobs") or {}).get("content") or []
        ids = choice.get("token_ids") or ()
        for place, entry in enumerate(entries):
            chosen = _logprob(entry)
            if len(ids) == len(entries):
                chosen["tokenId"] = ids[place]
            candidate.logprobs.append(chosen)
            candidate.top_logprobs.append(
                {"candidates": [_logprob(top) for top in entry.get("top_logprobs") or ()]}
            )
            if isinstance(entry["logprob"], int | float):
                candidate.total += entry["logprob"]
                candidate.count += 1

    def _frame(self, document: dict[str, Any]) -> bytes:
        """An event, or the next element of the array."""
        payload = orjson.dumps(document)
        if not self._target.array:
            return sse.encode(payload)
        opening = b",\r\n" if self._begun else b"["
        self._begun = True
        return opening + payload


def _call_parts(calls: Any) -> tuple[list[dict[str, Any]], str | None]:
    """The calls as parts, and the text of one whose arguments are no JSON object: then none is sent, as Google does."""
    parts = []
    for call in calls:
        function = call["function"]
        try:
            arguments = orjson.loads(function["arguments"] or "{}")
        except orjson.JSONDecodeError:
            arguments = None
        if not isinstance(arguments, dict):
            return [], f"{function['name']}({function['arguments']})"
        named = {"id": call["id"]} if call.get("id") else {}
        parts.append({"functionCall": {**named, "name": function["name"], "args": arguments}})
    return parts, None


def _logprob(entry: Mapping[str, Any]) -> dict[str, Any]:
    return {"token": entry.get("token", ""), "logProbability": entry["logprob"]}


def _usage_metadata(usage: Mapping[str, Any]) -> dict[str, Any]:
    """Google counts thoughts beside the candidates' tokens, the engine among them (where it counts them at all)."""
    prompt, completion = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    thoughts = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens") or 0
    metadata = {"promptTokenCount": prompt, "candidatesTokenCount": completion - thoughts}
    metadata["totalTokenCount"] = prompt + completion
    if thoughts:
        metadata["thoughtsTokenCount"] = thoughts
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
    if cached:
        metadata["cachedContentTokenCount"] = cached
    return metadata
