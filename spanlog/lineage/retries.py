"""Which of several calls with one prompt count: a retry takes the place of a reply that came to nothing.

A harness sends the same request again where a reply was lost, came too late or could not be used; it also sends one
request several times on purpose, to choose among the replies. What tells them apart is what was done with the replies.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from spanlog.lineage.parents import Link
from spanlog.lineage.span import LineageSpan

PARALLEL_S = 1.0
"""Seconds: calls with one prompt that begin within this time, and overlap, are samples to choose from. A client waits
longer than that before it gives a call up."""


def same_requests(spans: Iterable[LineageSpan], links: Mapping[str, Link]) -> list[list[LineageSpan]]:
    """Calls of one thread that go on from one call and asked the same: by their prompt's tokens, or messages and tools
    where there are none.

    Each list in order of time; calls that nothing was asked like are left out.
    """
    by_tokens: dict[tuple[object, ...], list[LineageSpan]] = {}
    by_messages: dict[tuple[object, ...], list[LineageSpan]] = {}
    ordered = sorted(spans, key=lambda span: span.order)
    for span in ordered:
        if span.prompt is not None and span.prompt.size:
            line = (span.thread, links[span.id].parent_id)
            group = by_tokens.setdefault((*line, span.prompt.tobytes()), [])
            group.append(span)
            if span.history is not None:
                by_messages.setdefault((*line, span.key, span.history), group)
    for span in ordered:
        if (span.prompt is None or not span.prompt.size) and span.history is not None:
            line = (span.thread, links[span.id].parent_id)
            by_messages.setdefault((*line, span.key, span.history), []).append(span)
    groups = {id(group): group for group in [*by_tokens.values(), *by_messages.values()] if len(group) > 1}
    in_time = [sorted(group, key=lambda span: span.order) for group in groups.values()]
    return sorted(in_time, key=lambda group: group[0].order)


def take_places(groups: Iterable[Sequence[LineageSpan]], used_at: Mapping[str, float]) -> dict[str, str]:
    """Id of each superseded call -> id of the one that took its place.

    ``used_at``: when the first call began whose history contains the reply, or which repeats its words. Calls that
    failed, or were late, take no place, and lose none.
    """
    replaced: dict[str, str] = {}
    for group in groups:
        for tries in attempts([span for span in group if span.stands], used_at):
            winners = [span for span in tries if span.id in used_at] or last_together(tries)
            ids = {span.id for span in winners}
            for span in tries:
                if span.id not in ids:
                    later = [winner for winner in winners if winner.order > span.order]
                    replaced[span.id] = (later or winners)[0].id
    return replaced


def attempts(spans: Sequence[LineageSpan], used_at: Mapping[str, float]) -> list[list[LineageSpan]]:
    """Calls that asked the same, cut where a reply had been used before the next call began: that one is no retry, the
    agent came to the same place again."""
    runs: list[list[LineageSpan]] = []
    for span in spans:
        if runs and not any(used_at.get(other.id, span.started_at) < span.started_at for other in runs[-1]):
            runs[-1].append(span)
        else:
            runs.append([span])
    return runs


def last_together(spans: Sequence[LineageSpan]) -> list[LineageSpan]:
    """The last of unused replies, and those that were asked for together with it. ``spans`` are in order of time."""
    if not spans:
        return []
    last = spans[-1]
    return [
        span
        for span in spans
        if (span.ended_at > last.started_at and last.started_at - span.started_at <= PARALLEL_S)
        or span is last
    ]
