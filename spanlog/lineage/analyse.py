"""Roles and delivery of all calls of an ended rollout. docs/lineage.md states the rules in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from spanlog.lineage.lines import Strand, cut_strands
from spanlog.lineage.parents import HISTORY_DROPPED, Link, find_parents, first_difference
from spanlog.lineage.retries import same_requests, take_places
from spanlog.lineage.span import LineageSpan
from spanlog.lineage.words import holds, repeated_replies, was_told
from spanlog.states import Delivery, SpanStatus

COMPACTION = "compaction"
RESTARTED = "restarted"


class Role(StrEnum):
    MAIN = "main"  # the agent's own work
    BRANCH = "branch"  # a sub-agent's, or a path that was left
    SIDE = "side"  # titles, commit messages and the like: what they say enters no line


@dataclass(frozen=True, slots=True)
class Place:
    """What became of one call."""

    role: Role
    delivery: Delivery
    line: int | None
    """Index of its line; null: it is on none (side calls; calls that failed, were late or superseded)."""
    parent_id: str | None
    """The call whose reply its history repeats last, or which its line had come to; null: it begins a line."""
    fork_cause: str | None
    """Null: its tokens extend the parent's, or it begins a line."""
    fork_token: int | None
    duplicate_of: str | None
    """The call with the same prompt that counts in its stead."""


@dataclass(frozen=True, slots=True)
class Line:
    """One agent's work, in order."""

    role: Role
    thread: str | None
    span_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Lineage:
    """Of one rollout. The main line comes first, if there is one."""

    places: Mapping[str, Place]
    lines: tuple[Line, ...]

    @property
    def main(self) -> tuple[str, ...]:
        return self.lines[0].span_ids if self.lines else ()

    @property
    def branches(self) -> tuple[Line, ...]:
        return self.lines[1:]

    @property
    def side(self) -> tuple[str, ...]:
        return tuple(
            id for id, place in self.places.items() if place.role == Role.SIDE and place.duplicate_of is None
        )


def analyse(spans: Sequence[LineageSpan]) -> Lineage:
    """Independent of the order of ``spans``, which have different ids. About O(tokens + messages) for usual rollouts."""
    spans = sorted(spans, key=lambda span: span.order)
    links = find_parents(spans)
    groups = same_requests(spans, links)
    used_at: dict[str, float] = {}
    for span in spans:
        if (parent := links[span.id].parent_id) is not None:
            used_at.setdefault(parent, span.started_at)
    ends = [span for span in spans if span.stands and span.id not in used_at]
    used_at |= repeated_replies(ends, spans, links)
    replaced = take_places(groups, used_at)
    counting = [span for span in spans if span.stands and span.id not in replaced]
    strands = cut_strands(counting, links)
    used = set(used_at) - replaced.keys()
    main = find_main(strands)
    chain = follow_main(main, strands, links, used) if main else []
    lines = [Line(Role.MAIN, main.first.thread, tuple(span.id for span in chain))] if main else []
    taken = {span.id for span in chain}
    roles = {span.id: Role.MAIN for span in chain}
    for strand in strands:
        if main is None or strand.first.id in taken:
            continue
        role = role_of(strand, main, used, counting)
        roles |= {span.id: role for span in strand.spans}
        if role == Role.BRANCH:
            lines.append(Line(role, strand.first.thread, tuple(span.id for span in strand.spans)))
    place_others(spans, links, groups, replaced, roles, main)
    line_of = {id: number for number, line in enumerate(lines) for id in line.span_ids}
    counts_for = stand_ins(groups, replaced)
    places = {
        span.id: Place(
            role=roles[span.id],
            delivery=delivery_of(span, replaced, used),
            line=line_of.get(span.id),
            parent_id=links[span.id].parent_id,
            fork_cause=links[span.id].fork_cause,
            fork_token=links[span.id].fork_token,
            duplicate_of=counts_for.get(span.id),
        )
        for span in sorted(spans, key=lambda span: span.id)
    }
    return Lineage(places, tuple(lines))


def find_main(strands: Sequence[Strand]) -> Strand | None:
    """Where the agent's own line begins: the first strand that has tools, if any has, and that came to something, if
    any did; or an earlier one of the same sort of agent that had ended by then.

    A single reply that asks for a tool counts as having come to something: the rollout may have ended there.
    """
    roots = [strand for strand in strands if strand.origin is None]
    with_tools = [strand for strand in roots if strand.first.tools is not None]
    some = with_tools or roots
    working = [strand for strand in some if len(strand.spans) > 1 or asks(strand.first)] or some
    if not working:
        return None
    found = working[0]
    earlier = [
        strand
        for strand in some
        if strand.first.kind == found.first.kind
        and strand.first.thread == found.first.thread
        and strand.ended_at <= found.first.started_at
    ]
    return (earlier or [found])[0]


def asks(span: LineageSpan) -> bool:
    return span.reply is not None and span.reply.calls


def follow_main(
    main: Strand, strands: Sequence[Strand], links: dict[str, Link], used: set[str]
) -> list[LineageSpan]:
    """The main line over compaction: strands that take up the work where it had ended. Completes ``links`` and
    ``used``."""
    chain, others = list(main.spans), [strand for strand in strands if strand.origin is None]
    for strand in others:
        if strand.first.order <= main.first.order or strand.first.id in {span.id for span in chain}:
            continue
        last = max(chain, key=lambda span: (span.ended_at, span.id))
        if strand.first.started_at < last.ended_at or strand.first.thread != main.first.thread:
            continue
        summary = find_summary(strand, chain, others)
        if not takes_up(strand, main, chain, summary):
            continue
        if summary is not None:
            used.add(summary.id)
            if summary is not chain[-1]:
                chain.append(summary)
        links[strand.first.id] = resume(strand, main, last, summary)
        chain += strand.spans
    return chain


def takes_up(strand: Strand, main: Strand, chain: Sequence[LineageSpan], summary: LineageSpan | None) -> bool:
    """Whether a strand that begins after the main line had ended is the same agent's work."""
    if strand.first.kind == main.first.kind:
        return summary is not None or not was_told(strand.first, chain)
    agent = strand.first.tools is not None or len(strand.spans) > 1
    return summary is not None and agent and strand.first.tools == main.first.tools


def find_summary(
    strand: Strand, chain: Sequence[LineageSpan], others: Sequence[Strand]
) -> LineageSpan | None:
    """The call whose reply the strand begins with: the line's last one, or a call of its own since then."""
    before = [
        other.first
        for other in others
        if len(other.spans) == 1 and chain[-1].order < other.first.order < strand.first.order
    ]
    found = [span for span in [chain[-1], *before] if not asks(span) and holds(strand.first, span)]
    return max(found, key=lambda span: span.order, default=None)


def resume(strand: Strand, main: Strand, last: LineageSpan, summary: LineageSpan | None) -> Link:
    """How a strand takes the main line up: it goes on from where that had come to, on another history."""
    if summary is not None:
        cause = COMPACTION
    elif strand.first.history is not None and strand.first.history == main.first.history:
        cause = RESTARTED
    else:
        cause = HISTORY_DROPPED
    return Link(last.id, cause, first_difference(last, strand.first))


def role_of(strand: Strand, main: Strand, used: set[str], spans: Sequence[LineageSpan]) -> Role:
    """Of a strand that is not on the main line: a branch if what it says comes to something, or it is an agent."""
    first = strand.first
    if len(strand.spans) > 1 or first.id in used:
        return Role.BRANCH
    if first.thread is not None and first.tools is not None:
        beside = strand.origin if strand.origin is not None else main.first
        if first.thread != beside.thread:
            return Role.BRANCH
    if strand.origin is not None:
        return Role.SIDE
    if first.kind == main.first.kind or was_told(first, spans):
        return Role.BRANCH
    return Role.SIDE


def place_others(
    spans: Sequence[LineageSpan],
    links: Mapping[str, Link],
    groups: Sequence[Sequence[LineageSpan]],
    replaced: Mapping[str, str],
    roles: dict[str, Role],
    main: Strand | None,
) -> None:
    """Roles of calls that do not count: of the call that asked the same, else of the line that they would go on."""
    asked = {span.id: group for group in groups for span in group}
    for span in spans:  # what a call goes on from comes before it
        if span.id in roles:
            continue
        alike = [roles[other.id] for other in asked.get(span.id, ()) if other.id in roles]
        parent = links[span.id].parent_id
        if span.id in replaced and replaced[span.id] in roles:
            roles[span.id] = roles[replaced[span.id]]
        elif alike:
            roles[span.id] = alike[0]
        elif parent in roles:
            roles[span.id] = roles[parent]
        else:
            own = main is None or span.kind == main.first.kind
            roles[span.id] = Role.MAIN if own else Role.SIDE


def stand_ins(groups: Sequence[Sequence[LineageSpan]], replaced: Mapping[str, str]) -> dict[str, str]:
    """Id of each call that does not count, and has a like that does -> that one: the next in time, else the last."""
    found = dict(replaced)
    for group in groups:
        counting = [span for span in group if span.stands and span.id not in replaced]
        for span in group:
            if not span.stands and counting:
                later = [other for other in counting if other.order > span.order]
                found[span.id] = (later or counting[-1:])[0].id
    return found


def delivery_of(span: LineageSpan, replaced: Mapping[str, str], used: set[str]) -> Delivery:
    if span.delivery == Delivery.LATE:
        return Delivery.LATE
    if span.status == SpanStatus.ABORTED or span.delivery == Delivery.ABORTED:
        return Delivery.ABORTED
    if span.id in replaced:
        return Delivery.SUPERSEDED
    return Delivery.ADOPTED if span.id in used else Delivery(span.delivery)
