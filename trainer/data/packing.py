"""Micro-batches: rows of similar length together, so that little is padding.

How rows are packed changes speed and memory, never the gradient [I10].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.samples import Sample
from trainer.data.tree import common_prefix_length

MIN_SHARED = 16
"""A common prefix shorter than this costs more in a pass of its own than it saves."""


@dataclass(frozen=True)
class MicroBatch:
    """B rows, right-padded to length L, with N targets in row-major order."""

    samples: tuple[int, ...]
    """Indices of the rows in the batch."""
    tokens: NDArray[np.int64]
    """(B, L); padding is 0."""
    lengths: NDArray[np.int64]
    """(B,)"""
    target_rows: NDArray[np.int64]
    """(N,)"""
    target_columns: NDArray[np.int64]
    """(N,): the target's own position; the hidden state that predicts it is one to the left."""
    temperatures: NDArray[np.float32]
    """(N,)"""
    shared: int
    """Length of the prefix that all rows have in common and that is run once; each row has a token after it."""


def pack(
    samples: Sequence[Sample], *, max_rows: int, max_tokens: int | None, share: bool
) -> list[MicroBatch]:
    """Longest rows first, cut at ``max_rows`` rows or ``max_tokens`` tokens including padding.

    A row longer than ``max_tokens`` gets a micro-batch of its own. Rows without targets are left out.
    """
    order = sorted(
        (index for index, sample in enumerate(samples) if sample.targets.any()),
        key=lambda index: (-len(samples[index].tokens), samples[index].tokens.tobytes(), index),
    )
    batches: list[list[int]] = []
    for index in order:
        if batches and _fits(batches[-1], samples, max_rows, max_tokens):
            batches[-1].append(index)
        else:
            batches.append([index])
    return [_to_micro_batch(indices, samples, share) for indices in batches]


def _fits(current: list[int], samples: Sequence[Sample], max_rows: int, max_tokens: int | None) -> bool:
    if len(current) >= max_rows:
        return False
    width = len(samples[current[0]].tokens)
    return max_tokens is None or (len(current) + 1) * width <= max_tokens


def _to_micro_batch(indices: list[int], samples: Sequence[Sample], share: bool) -> MicroBatch:
    rows = [samples[index] for index in indices]
    lengths = np.array([len(row.tokens) for row in rows], np.int64)
    tokens = np.zeros((len(rows), int(lengths.max())), np.int64)
    targets = np.zeros(tokens.shape, bool)
    temperatures = np.ones(tokens.shape, np.float32)
    for place, row in enumerate(rows):
        tokens[place, : len(row.tokens)] = row.tokens
        targets[place, : len(row.tokens)] = row.targets
        temperatures[place, : len(row.tokens)] = row.temperature
    target_rows, target_columns = np.nonzero(targets)
    return MicroBatch(
        samples=tuple(indices),
        tokens=tokens,
        lengths=lengths,
        target_rows=target_rows.astype(np.int64),
        target_columns=target_columns.astype(np.int64),
        temperatures=temperatures[targets],
        shared=shared_prefix(rows) if share else 0,
    )


def shared_prefix(rows: Sequence[Sample]) -> int:
    """Longest common prefix that leaves each row a token; 0 if there is too little to share."""
    if len(rows) < 2:
        return 0
    length = min(len(row.tokens) for row in rows) - 1
    for row in rows[1:]:
        length = min(length, common_prefix_length(rows[0].tokens[:length], row.tokens))
    return length if length >= MIN_SHARED else 0
