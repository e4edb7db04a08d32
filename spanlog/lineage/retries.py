"""Which of several calls with one prompt count: a retry takes the place of a reply that came to nothing.

A harness sends the same request again where a reply was lost, came too late or could not be used; it also sends one
request several times on purpose, to choose among the replies. What tells them apart is what was done with the replies.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from spanlog.lineage.span import LineageSpan

PARALLEL_S = 1.0
"""Seconds: calls with one prompt that begin within this time, and overlap, are samples to choose from. A client waits
longer than that before it gives a call up."""


def same_requests(spans: Iterable[LineageSpan]) -> list[list[LineageSpan]]:
    """Calls of one thread that asked the same: by their prompt's tokens, or messages and tools where there are none.

    Each list in order of time; calls that nothing was asked like are left out.
    """
    by_tokens: dict[tuple[object, ...], list[LineageSpan]] = {}
    by_messages: dict[tuple[object, ...], list[LineageSpan]] = {}
    ordered = sorted(spans, key=lambda span: span.order)
    for span in ordered:
        if span.prompt is not None and span.prompt.size:
            group = by_tokens.setdefault((span.thread, span.prompt.tobytes()), [])
            group.append(span)
            if span.history is not None:
                by_messages.setdefault((span.thread, span.key, span.history), group)
    for span in ordered:
        if (span.prompt is None or not span.prompt.size) and span.history is not None:
            by_messages.setdefault((span.thread, span.key, span.history), []).append(span)
    groups = {id(group): group for group in [*by_tokens.values(), *by_messages.values()] if len(group) > 1}
    in_time = [sorted(group, key=lambda span: span.order) for group in groups.values()]
    return sorted(in_time, key=lambda group: group[0].order)


def take_places(groups: Iterable[Sequence[LineageSpan]], used: Collection[str]) -> dict[str, str]:
    """Id of each superseded call -> id of the one that took its place.

    ``used``: the calls whose reply a later history contains, or a later message repeats. Calls that failed, or were
    late, take no place, and lose none.
    """
    replaced: dict[str, str] = {}
    for group in groups:
        standing = [span for span in group if span.stands]
        winners = [span for span in standing if span.id in used] or last_together(standing)
        ids = {span.id for span in winners}
        for span in standing:
            if span.id not in ids:
                later = [winner for winner in winners if winner.order > span.order]
                replaced[span.id] = (later or winners)[0].id
    return replaced


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
