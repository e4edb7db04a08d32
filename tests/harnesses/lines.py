"""Lines of work by their tokens alone: the judge of token histories that knows nothing of how the proxy finds them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from spanlog.records import SpanRecord


def history(span: SpanRecord) -> np.ndarray:
    """All tokens up to the end of the span's reply, int32 [prompt + completion]."""
    assert span.prompt_tokens is not None and span.completion_tokens is not None, span.id
    return np.concatenate([span.prompt_tokens, span.completion_tokens])


def extends(span: SpanRecord, earlier: SpanRecord) -> bool:
    """Whether the prompt of ``span`` begins with all that ``earlier`` read and wrote."""
    before = history(earlier)
    assert span.prompt_tokens is not None
    return before.size <= span.prompt_tokens.size and np.array_equal(
        span.prompt_tokens[: before.size], before
    )


def lines(spans: Sequence[SpanRecord]) -> list[list[SpanRecord]]:
    """The spans, in order of time, as chains of exact extensions; a span that extends none begins a chain.

    A span that extends one in the middle of a chain begins a chain too, for it branches off there.
    """
    found: list[list[SpanRecord]] = []
    for span in sorted(spans, key=lambda span: span.id):
        grown = [chain for chain in found if extends(span, chain[-1])]
        if grown:
            max(grown, key=lambda chain: history(chain[-1]).size).append(span)
        else:
            found.append([span])
    return found


def divergence(span: SpanRecord, earlier: SpanRecord) -> int:
    """How many tokens of ``earlier``'s history the prompt of ``span`` shares with it, from the start."""
    before, prompt = history(earlier), span.prompt_tokens
    assert prompt is not None
    size = min(before.size, prompt.size)
    differs = np.flatnonzero(before[:size] != prompt[:size])
    return int(differs[0]) if differs.size else size
