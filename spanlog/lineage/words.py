"""Replies that come back as words: as the result of a tool, as a summary, as what a sub-agent is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from spanlog.lineage.parents import Link
from spanlog.lineage.span import LineageSpan

Kind = tuple[bytes | None, bytes | None]
LEAST = 16
"""Characters: shorter texts are found in others by chance."""


def repeated_replies(
    ends: Iterable[LineageSpan], spans: Sequence[LineageSpan], links: Mapping[str, Link]
) -> dict[str, float]:
    """Id of each of the ``ends`` whose text a later call brings in -> when the first such call began.

    A reply of an agent with tools counts wherever it is found (a sub-agent's report); of one without, where it makes up
    at least half of the text that holds it: a commit message in the output of ``git log`` is no report.
    """
    texts = list(brought_in(spans, links))
    found: dict[str, float] = {}
    for end in ends:
        said = end.reply.text if end.reply is not None else None
        if said is None or len(said) < LEAST:
            continue
        times = [
            started_at
            for started_at, text, kind in texts
            if started_at >= end.ended_at
            and said in text
            and kind != end.kind
            and (end.tools or 2 * len(said) >= len(text))
        ]
        if times:
            found[end.id] = min(times)
    return found


def brought_in(
    spans: Sequence[LineageSpan], links: Mapping[str, Link]
) -> Iterator[tuple[float, str, Kind | None]]:
    """When a call began, and a text that is new in it: all of them where it goes on from none.

    Texts of assistants come with the sort of agent that holds them: one that holds its own words repeats them, and has
    no need of another call that said the same.
    """
    by_id = {span.id: span for span in spans}
    for span in spans:
        parent = by_id.get(links[span.id].parent_id or "")
        for item in span.items[len(parent.items) if parent else 0 :]:
            if item.role != "system":
                kind = span.kind if item.role == "assistant" else None
                for text in item.texts:
                    yield span.started_at, text, kind


def was_told(first: LineageSpan, earlier: Iterable[LineageSpan]) -> bool:
    """Whether the call's task comes from the arguments of a tool call that an earlier reply made."""
    texts = [text for item in first.items if item.role == "user" for text in item.texts][-2:]
    return any(
        len(told) >= LEAST and any(told in text and 2 * len(told) >= len(text) for text in texts)
        for span in earlier
        if span.ended_at <= first.started_at
        for told in span.asked
    )


def holds(span: LineageSpan, said: LineageSpan) -> bool:
    """Whether a message of the call contains the text of an earlier reply."""
    text = said.reply.text if said.reply is not None else None
    if text is None or len(text) < LEAST or said.ended_at > span.started_at:
        return False
    return any(text in held for item in span.items for held in item.texts)
