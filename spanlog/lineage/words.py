"""Replies that come back as words: as the result of a tool, as a summary, as what a sub-agent is told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from spanlog.lineage.span import LineageSpan

LEAST = 16
"""Characters: shorter texts are found in others by chance."""


def repeated_replies(
    ends: Iterable[LineageSpan], spans: Sequence[LineageSpan], ignore: frozenset[str] = frozenset()
) -> set[str]:
    """Ids of those ``ends`` whose text a message of a later call contains.

    A reply of an agent with tools counts wherever it is found (a sub-agent's report); of one without, where it makes up
    at least half of the text that holds it: a commit message in the output of ``git log`` is no report.
    """
    texts = first_seen(spans)
    found: set[str] = set()
    for end in ends:
        said = end.reply.text if end.reply is not None else None
        if said is None or len(said) < LEAST or end.id in ignore:
            continue
        for text, (started_at, _) in texts.items():
            if started_at >= end.ended_at and said in text and (end.tools or 2 * len(said) >= len(text)):
                found.add(end.id)
                break
    return found


def first_seen(spans: Iterable[LineageSpan]) -> dict[str, tuple[float, str]]:
    """Texts of users and tools -> the first call that held them."""
    seen: dict[str, tuple[float, str]] = {}
    for span in sorted(spans, key=lambda span: span.order):
        for item in span.items:
            if item.role not in ("system", "assistant"):
                for text in item.texts:
                    seen.setdefault(text, span.order)
    return seen


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
