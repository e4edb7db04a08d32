"""Which earlier call each call goes on from, and why its tokens do not if they do not.

A call goes on from the reply that its history repeats last. Where the whole history up to there was recorded, it is the
turn's exact continuation, or its tokens drifted; where a message before it was changed, or the tools, it goes on from
that turn all the same, and forks: the line of work is one, though its tokens are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np

from spanlog.arrays import Ints
from spanlog.delta import shared_length
from spanlog.lineage.span import Item, LineageSpan
from spanlog.matching import Echo, is_unaltered, likeness

DRIFT = "drift"
TOOLS_CHANGED = "tools_changed"
SETTINGS_CHANGED = "settings_changed"
SYSTEM_CHANGED = "system_changed"
MESSAGE_REWRITTEN = "message_rewritten"
MESSAGE_REMOVED = "message_removed"
MESSAGE_ADDED = "message_added"
HISTORY_DROPPED = "history_dropped"
UNRECORDED = "unrecorded_history"
UNMATCHED = "unmatched"
"""What is recorded while a rollout runs where no beginning of a history is known; here its cause is found."""


@dataclass(frozen=True, slots=True)
class Link:
    """A call and the one it goes on from."""

    parent_id: str | None
    fork_cause: str | None = None
    """Null: its tokens extend the parent's, or it begins a line."""
    fork_token: int | None = None
    """Place in the parent's tokens of the first that differs."""


@dataclass(frozen=True, slots=True)
class Found:
    """A turn whose reply the history repeats at ``place``."""

    span: LineageSpan
    place: int
    fork: str | None
    """Why it is no exact continuation, as far as messages tell."""


class Index:
    """The turns that can be gone on from, by what they are looked up by."""

    def __init__(self, spans: Iterable[LineageSpan]) -> None:
        self.by_id: dict[str, LineageSpan] = {}
        self.by_context: dict[str, list[LineageSpan]] = {}
        self.by_history: dict[str, list[LineageSpan]] = {}
        self.by_said: dict[bytes, list[LineageSpan]] = {}
        self.by_tokens: dict[bytes, list[LineageSpan]] = {}
        lengths: set[int] = set()
        for span in spans:
            self.by_id[span.id] = span
            if span.context is not None:
                self.by_context.setdefault(span.context, []).append(span)
            if span.history is not None:
                self.by_history.setdefault(span.history, []).append(span)
            if span.said is not None:
                self.by_said.setdefault(span.said, []).append(span)
            if (whole := whole_tokens(span)) is not None:
                self.by_tokens.setdefault(blake2b(whole.tobytes()).digest(), []).append(span)
                lengths.add(whole.size)
        self.lengths = sorted(lengths)


def find_parents(spans: Sequence[LineageSpan]) -> dict[str, Link]:
    """For each call the one it goes on from."""
    index = Index(span for span in spans if span.stands)
    return {span.id: find_parent(span, index) for span in spans}


def find_parent(span: LineageSpan, index: Index) -> Link:
    recorded = index.by_id.get(span.parent_id) if span.parent_id else None
    if recorded is not None and span.fork_cause is None and recorded.order < span.order:
        return Link(recorded.id)
    found, extended = by_messages(span, index), by_tokens(span, index)
    if extended is not None and (found is None or len(extended.items) > found.place):
        return Link(extended.id)
    if found is None:
        replies = any(item.said for item in span.items)
        return Link(None, UNRECORDED if replies else None)
    cause, token = found.fork, first_difference(found.span, span)
    if cause is None and token is None:
        return Link(found.span.id)
    if cause is None or found.span is recorded:
        online = span.fork_cause if found.span is recorded and span.fork_cause != UNMATCHED else None
        cause = online or cause or DRIFT
        token = span.fork_token if online and span.fork_token is not None else token
    return Link(found.span.id, cause, token)


def by_messages(span: LineageSpan, index: Index) -> Found | None:
    """The turn whose reply the history repeats last."""
    for place in reversed(range(len(span.items))):
        echo = span.items[place].echo
        if echo is not None and (found := turn_at(span, place, echo, index)) is not None:
            return found
    return None


def turn_at(span: LineageSpan, place: int, echo: Echo, index: Index) -> Found | None:
    """The turn whose reply is the assistant's message at ``place``: the more of its history is there, the better."""

    def best(turns: Iterable[LineageSpan], fits: Callable[[LineageSpan], bool]) -> LineageSpan | None:
        return choose_turn(span, (turn for turn in turns if fits(turn)), echo)

    equal = index.by_context.get(span.hashes[place], ())
    if turn := best(equal, lambda turn: turn.key == span.key and unaltered(turn, echo)):
        return Found(turn, place, None)
    if turn := best(equal, lambda turn: unaltered(turn, echo)):
        return Found(turn, place, TOOLS_CHANGED if turn.tools != span.tools else SETTINGS_CHANGED)
    asked = index.by_history.get(span.hashes[place - 1], ()) if place else ()
    if turn := best(asked, lambda turn: turn.said is not None):
        return Found(turn, place, f"{MESSAGE_REWRITTEN}:{place}")
    said = span.items[place].said
    equal = index.by_said.get(said, ()) if said else ()
    if turn := best(equal, lambda turn: same_work(turn, span, echo)):
        return Found(turn, place, changed_history(turn, span, place))
    return None


def choose_turn(span: LineageSpan, turns: Iterable[LineageSpan], echo: Echo) -> LineageSpan | None:
    """Of turns that fit alike: by thread, by what is echoed, by time; the same whatever their order."""
    earlier = [turn for turn in turns if turn.order < span.order]
    return max(
        earlier,
        key=lambda turn: (
            turn.thread == span.thread,
            *likeness(turn.reply or Echo(), echo),
            first_difference(turn, span) is None,
            turn.ended_at <= span.started_at,
            turn.ended_at,
            turn.id,
        ),
        default=None,
    )


def unaltered(turn: LineageSpan, echo: Echo) -> bool:
    return turn.reply is None or is_unaltered(turn.reply, echo)


def same_work(turn: LineageSpan, span: LineageSpan, echo: Echo) -> bool:
    """Whether an equal reply on another history is the same line's: words alone can be equal by chance, or quoted."""
    if turn.reply is not None and turn.reply.ids & echo.ids:
        return True
    return turn.thread == span.thread and turn.tools == span.tools and turn.system == span.system


def changed_history(turn: LineageSpan, span: LineageSpan, place: int) -> str:
    """What happened to the messages before a reply that is repeated at ``place``."""
    if turn.system != span.system:
        return SYSTEM_CHANGED
    before, now = digests(turn.items), digests(span.items[:place])
    same = next((at for at, pair in enumerate(zip(before, now, strict=False)) if pair[0] != pair[1]), None)
    if same is None:
        same = min(len(before), len(now))
        return f"{MESSAGE_REMOVED if same < len(before) else MESSAGE_ADDED}:{same}"
    if len(now) < len(before) and now[same:] == before[len(before) - len(now) + same :]:
        return f"{HISTORY_DROPPED}:{same}"
    return f"{MESSAGE_REWRITTEN}:{same}"


def digests(items: Sequence[Item]) -> list[bytes]:
    return [item.digest for item in items]


def by_tokens(span: LineageSpan, index: Index) -> LineageSpan | None:
    """The turn with the longest prompt and completion that the prompt begins with."""
    if span.prompt is None:
        return None
    data, state, done = span.prompt.tobytes(), blake2b(), 0
    size = span.prompt.itemsize
    found: list[LineageSpan] = []
    for length in index.lengths:
        if length > span.prompt.size:
            break
        state.update(data[done * size : length * size])
        done = length
        turns = index.by_tokens.get(state.digest(), ())
        found = [turn for turn in turns if turn.order < span.order] or found
    place = len(found[0].items) if found else 0
    echo = span.items[place].echo if place < len(span.items) else None
    return choose_turn(span, found, echo or Echo())


def first_difference(parent: LineageSpan, span: LineageSpan) -> int | None:
    """Place of the first of the parent's tokens that the call's prompt does not repeat; null: it repeats them all."""
    before = whole_tokens(parent)
    if before is None or span.prompt is None:
        return None
    shared = shared_length(before, span.prompt)
    return None if shared == before.size else shared


def whole_tokens(span: LineageSpan) -> Ints | None:
    """Prompt and completion; null where one is unknown or nothing was sampled: then nothing can contain it."""
    if span.prompt is None or span.completion is None or not span.completion.size:
        return None
    return np.concatenate([span.prompt, span.completion]).astype(np.int32, copy=False)
