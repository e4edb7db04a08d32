"""Which recorded turn a request continues, and the exact prompt that follows from it. Keeps I1.

Only the parent of the splice is decided while calls run: the recorded turn with the longest history that the request
repeats, found with one query, so that it does not matter which process recorded it. Everything else about lineage is a
pure function over the ended rollout (``spanlog.lineage``).
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from proxy import splice
from proxy.engine.client import EngineClient
from proxy.engine.pool import EngineView
from proxy.errors import Refusal
from proxy.hub import prompt_of
from spanlog.canonical import context_hashes, context_key, extend_hash
from spanlog.database import Database
from spanlog.delta import Parent
from spanlog.errors import SpanlogError
from spanlog.finder import Finder
from spanlog.matching import Candidate, choose, echoed
from spanlog.records import read_parent
from spanlog.states import History

CACHE_BYTES = 64 * 2**20
"""Of recent turns' tokens and digests; what is not there is read from the span log with one query."""
IGNORED = "exact_prompt_ignored"
"""The engine sampled from other tokens than it was given."""
DRIFT = "drift"
"""Observe mode: the history tokenises to other tokens than were recorded."""
UNMATCHED = "unmatched"
"""The request has a history of replies, and none of its beginnings was recorded."""


@dataclass(frozen=True, slots=True)
class Match:
    """What the span log knows of a request's history."""

    hashes: list[str]
    """Context hash after each message; empty for requests without messages."""
    parent: Parent | None = None
    """The turn that is continued; where none is (``fork_cause``), the one to store the request as a change of."""
    candidate: Candidate | None = None
    upto: int = 0
    """Messages of the request that the parent holds, its reply included; 0 if nothing is continued."""
    fork_cause: str | None = None

    def context_hash(self, reply: dict[str, Any] | None) -> str | None:
        """Of the request and its reply: what a next request's history is looked up by."""
        if not self.hashes or not reply or "choices" in reply or not reply.get("message"):
            return None
        return extend_hash(self.hashes[-1], reply["message"])


NOTHING = Match([])


@dataclass(frozen=True, slots=True)
class Prompt:
    """The tokens that the engine is to sample from."""

    tokens: list[int]
    spliced: bool
    fork: splice.Fork | None


class Histories:
    """Matches requests with recorded turns; one for a process."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._finder = Finder(database)
        self._parents: OrderedDict[str, Parent] = OrderedDict()
        self._last: dict[str, str] = {}
        self._bytes = 0

    async def match(self, rollout_id: str, policy_id: str, request: dict[str, Any]) -> Match:
        """Raises Refusal 503 where the span log cannot be read."""
        messages = request.get("messages")
        if not messages:
            return NOTHING
        hashes = context_hashes(context_key(request, policy_id=policy_id), messages)
        replies = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
        if not replies:
            return Match(hashes)
        longest_first = [hashes[index] for index in reversed(replies)]
        try:
            found = await self._finder.find(rollout_id, longest_first)
            candidate = choose(found, longest_first, echoed(messages))
            if candidate is None:
                last = self._last.get(rollout_id)
                return Match(hashes, parent=self._parents.get(last) if last else None, fork_cause=UNMATCHED)
            parent = self._parents.get(candidate.id) or await asyncio.to_thread(self._read, candidate.id)
        except SpanlogError as error:
            raise Refusal(
                503, f"The span log cannot be read: {error}", code="span_log", retry_after=1
            ) from error
        if parent is None:
            return Match(hashes, fork_cause=UNMATCHED)
        return Match(hashes, parent, candidate, hashes.index(candidate.context_hash) + 1)

    def close(self) -> None:
        self._finder.close()

    def remember(self, parent: Parent) -> None:
        """Keeps a turn that was just committed, or read."""
        size = size_of(parent)
        if parent.id in self._parents or size > CACHE_BYTES // 4:
            return
        self._parents[parent.id] = parent
        self._last[parent.rollout_id] = parent.id
        self._bytes += size
        while self._bytes > CACHE_BYTES:
            _, old = self._parents.popitem(last=False)
            self._bytes -= size_of(old)
            if self._last.get(old.rollout_id) == old.id:
                del self._last[old.rollout_id]

    def _read(self, span_id: str) -> Parent | None:
        with self._database.read() as conn:
            return read_parent(conn, span_id)


async def exact_prompt(
    client: EngineClient, engine: EngineView, request: dict[str, Any], match: Match, history: str
) -> Prompt | None:
    """The prompt in exact mode; None where there is nothing to splice and the engine may render by itself.

    ``request`` is what the engine is asked, in its terms. Raises UpstreamFailed where the engine cannot render it.
    """
    parent, candidate = match.parent, match.candidate
    if candidate is None or parent is None or parent.tokens is None:
        return None
    messages: Sequence[dict[str, Any]] = request["messages"]
    plain = {"model": request["model"], **prompt_of(request)}
    whole, past = await asyncio.gather(
        client.render(engine, plain),
        client.render(
            engine,
            plain,
            messages=messages[: match.upto],
            add_generation_prompt=False,
            continue_final_message=False,
        ),
    )
    closer = (engine.capabilities.get("turn_closer") or [None])[0]
    recorded = splice.Recorded(parent.tokens.tolist(), candidate.finish_reason, candidate.stop_reason)
    if closer is None:
        return Prompt(whole, False, splice.Fork("no_closer", splice.common_prefix(recorded.tokens, whole)))
    result = splice.splice(recorded, past, whole, closer)
    if isinstance(result, splice.Unproved):
        if history == History.FAITHFUL:
            result = result.fork
        else:
            marked = splice.with_marker(messages, match.upto - 1)
            other = splice.with_other_end(messages, match.upto)
            changed, otherwise = await asyncio.gather(
                client.render(engine, plain, messages=marked), client.render(engine, plain, messages=other)
            )
            result = splice.splice_rewritten(recorded, past, whole, changed, otherwise, closer)
    if isinstance(result, splice.Fork):
        return Prompt(whole, False, result)
    return Prompt(result.prompt, True, None)


def fork_of(
    match: Match, prompt: Prompt | None, sampled_from: Sequence[int] | None
) -> tuple[str | None, int | None]:
    """Why and at which token the call's prompt leaves the recorded turn; nulls where it extends it or begins anew.

    ``sampled_from``: the prompt ids that the engine returned. They are compared on every call: an engine can silently
    render by itself although it was given tokens.
    """
    if match.candidate is None or match.parent is None:
        return match.fork_cause, _parting(match, sampled_from)
    if prompt is not None and prompt.fork is not None:
        return prompt.fork.cause, prompt.fork.token
    if sampled_from is None or match.parent.tokens is None:
        return None, None
    if prompt is not None and prompt.tokens != sampled_from:
        return IGNORED, splice.common_prefix(prompt.tokens, sampled_from)
    recorded = match.parent.tokens.tolist()
    if len(sampled_from) < len(recorded) or sampled_from[: len(recorded)] != recorded:
        return DRIFT, splice.common_prefix(recorded, sampled_from)
    return None, None


def _parting(match: Match, sampled_from: Sequence[int] | None) -> int | None:
    """Where an unmatched request leaves the turn that it is stored as a change of."""
    if (
        match.fork_cause is None
        or match.parent is None
        or match.parent.tokens is None
        or sampled_from is None
    ):
        return None
    return splice.common_prefix(match.parent.tokens.tolist(), sampled_from)


def size_of(parent: Parent) -> int:
    """Bytes of a kept turn, about."""
    tokens = 0 if parent.tokens is None else parent.tokens.nbytes
    return 1000 + tokens + 60 * (len(parent.request_items) + len(parent.hub_items))
