"""The token tree of one rollout: its spans merged by exact prefix, whatever their order [I7].

A radix tree: each node holds a run of tokens, each leaf is one training row. A span's prompt and completion end at
some node; its completion's tokens are targets in exactly one row below that node, and mere context in the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]


@dataclass(frozen=True)
class Call:
    """What the tree needs of a span."""

    id: str
    prompt: Tokens
    """(P,) int32; at least one token, since the first sampled token needs a context."""
    completion: Tokens
    """(C,) int32; at least one token."""


@dataclass
class Row:
    """Root to leaf."""

    tokens: Tokens
    """(L,) int32."""
    owners: NDArray[np.int64]
    """(L,): index, into the calls, of the one whose sampled token is a target here; -1 where none is."""


@dataclass(eq=False)
class _Node:
    """``tokens`` lead from the parent to here; ``ends`` are the calls whose last token is this node's last."""

    tokens: Tokens
    children: dict[int, _Node] = field(default_factory=dict)
    ends: list[int] = field(default_factory=list)


def build_rows(calls: Sequence[Call]) -> list[Row]:
    """The fewest root-to-leaf rows, plus one for each call whose place in all of them is taken.

    A place is taken when two calls sampled the same tokens in the same context (two parallel samples that agree):
    both sets are targets, so they need a row each. The result depends on the calls' content and ids, not on order.
    """
    order = sorted(range(len(calls)), key=lambda index: _sort_key(calls[index]))
    root = _Node(np.empty(0, np.int32))
    for index in order:
        _insert(root, np.concatenate([calls[index].prompt, calls[index].completion]), index)
    rows: list[Row] = []
    spans_of_rows: dict[int, tuple[int, int]] = {}
    _collect(root, rows, spans_of_rows)
    leaves = rows[:]
    for index in order:
        first, last = spans_of_rows[index]
        _place(index, calls[index], rows, leaves[first:last])
    return rows


def _sort_key(call: Call) -> tuple[int, bytes, bytes, str]:
    return (
        len(call.prompt) + len(call.completion),
        call.prompt.tobytes(),
        call.completion.tobytes(),
        call.id,
    )


def _insert(root: _Node, tokens: Tokens, index: int) -> None:
    """Walks down while the tokens agree, splits the node in which they part, and marks the end."""
    node = root
    while len(tokens):
        child = node.children.get(int(tokens[0]))
        if child is None:
            child = _Node(tokens)
            node.children[int(tokens[0])] = child
            node, tokens = child, tokens[:0]
            break
        agreed = common_prefix_length(child.tokens, tokens)
        if agreed < len(child.tokens):
            upper = _Node(child.tokens[:agreed], {int(child.tokens[agreed]): child})
            node.children[int(tokens[0])] = upper
            child.tokens = child.tokens[agreed:]
            child = upper
        node, tokens = child, tokens[agreed:]
    node.ends.append(index)


def _collect(root: _Node, rows: list[Row], spans_of_rows: dict[int, tuple[int, int]]) -> None:
    """Depth first in token order; notes for each call the range of rows that run through its end.

    An explicit stack: a conversation of a thousand turns is a thousand nodes deep.
    """
    stack: list[tuple[_Node, list[Tokens], int | None]] = [(root, [], None)]
    while stack:
        node, above, first_row = stack.pop()
        if first_row is not None:  # the second visit: every row below this node exists
            spans_of_rows.update({index: (first_row, len(rows)) for index in node.ends})
            continue
        path = [*above, node.tokens]
        stack.append((node, above, len(rows)))
        if not node.children and node is not root:
            tokens = np.concatenate(path)
            rows.append(Row(tokens, np.full(len(tokens), -1, np.int64)))
        stack.extend((node.children[key], path, None) for key in sorted(node.children, reverse=True))


def _place(index: int, call: Call, rows: list[Row], candidates: list[Row]) -> None:
    """Makes the call's completion the target of one row: the first with room, or one of its own."""
    start, stop = len(call.prompt), len(call.prompt) + len(call.completion)
    for row in candidates:
        if (row.owners[start:stop] == -1).all():
            row.owners[start:stop] = index
            return
    own = Row(np.concatenate([call.prompt, call.completion]), np.full(stop, -1, np.int64))
    own.owners[start:stop] = index
    rows.append(own)


def common_prefix_length(left: Tokens, right: Tokens) -> int:
    """How many leading tokens agree."""
    length = min(len(left), len(right))
    different = np.flatnonzero(left[:length] != right[:length])
    return int(different[0]) if len(different) else length
