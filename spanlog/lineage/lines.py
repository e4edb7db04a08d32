"""From calls and what they go on from to lines of work: each tree of calls is cut into a line from its root to the end,
and lines that leave it on the way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from spanlog.lineage.parents import Link
from spanlog.lineage.span import LineageSpan


@dataclass(eq=False)
class Strand:
    """Calls of which each goes on from the one before."""

    spans: list[LineageSpan]
    origin: LineageSpan | None
    """The call of another strand that the first goes on from; null: it begins a tree."""

    @property
    def first(self) -> LineageSpan:
        return self.spans[0]

    @property
    def last(self) -> LineageSpan:
        return self.spans[-1]

    @property
    def ended_at(self) -> float:
        return max(span.ended_at for span in self.spans)


def cut_strands(spans: Sequence[LineageSpan], links: Mapping[str, Link]) -> list[Strand]:
    """Strands in order of their first call. ``spans`` are the calls that count; each belongs to one strand.

    Where a call has several successors, its line is that of its own thread, and among those of the one that was worked
    on last; the others begin strands of their own.
    """
    ordered = sorted(spans, key=lambda span: span.order)
    ids = {span.id: span for span in ordered}
    children: dict[str | None, list[LineageSpan]] = {}
    for span in ordered:
        parent = links[span.id].parent_id
        children.setdefault(parent if parent in ids else None, []).append(span)
    worked_on: dict[str, tuple[float, str]] = {}
    for span in reversed(ordered):  # a call's successors come after it
        later = [worked_on[child.id] for child in children.get(span.id, ())]
        worked_on[span.id] = max([span.order, *later])
    strands: list[Strand] = []
    starts = [(span, None) for span in children.get(None, ())]
    while starts:
        span, origin = starts.pop()
        line = [span]
        while successors := children.get(line[-1].id):
            here = line[-1]
            following = max(successors, key=lambda child: (child.thread == here.thread, worked_on[child.id]))
            starts += [(child, here) for child in successors if child is not following]
            line.append(following)
        strands.append(Strand(line, origin))
    return sorted(strands, key=lambda strand: strand.first.order)
