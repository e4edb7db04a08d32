"""From one rollout's spans to training samples, by explicit and counted rules [I7].

A span is a target if it went well, is on a line of the agent's work, and nothing took its place (``spanlog.lineage``
says so; ``trainer.data.read`` asks it); everything else is at most context. What was left out, and why, is counted, so
that a builder never loses tokens in silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.tree import Call, Row, Tokens, build_rows

BUILDER = "rows/2"
"""Name and version, recorded with each sample [I12]; raise the number when the same log would give other samples."""

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Turn:
    """A span as the builder sees it: plain arrays and words, no database."""

    id: str
    prompt: Tokens
    completion: Tokens
    logprobs: Floats | None
    """(C,) float32, of the distribution that was sampled from; None for retokenized text."""
    version_low: Tokens | None
    version_high: Tokens | None
    """(C,) int32, closed range of policy versions per token [I2]; None for retokenized text."""
    temperature: float
    excluded: str | None = None
    """Why it can be no target (``late``, ``superseded``, ``side``, ``untrainable:forced_tool_choice``); None if it can."""


@dataclass(frozen=True)
class RolloutData:
    """One rollout as read: its reward (None: missing, which is not zero [I4]) and its turns in any order."""

    id: str
    reward: float | None
    turns: Sequence[Turn]


@dataclass(frozen=True)
class Sample:
    """A training row. Arrays have the row's length L; at non-targets all but ``tokens`` hold zeros."""

    rollout: int
    """Index of its rollout in the batch: advantages and weights hang on it, never on the row [I9]."""
    tokens: Tokens
    targets: NDArray[np.bool_]
    logged: Floats
    """Logprobs from the engine; zeros where ``has_logged`` is False."""
    has_logged: bool
    version_low: Tokens
    version_high: Tokens
    temperature: Floats
    """What the logits are divided by; 1 at non-targets."""
    span_ids: tuple[str, ...]
    """The spans whose completions are targets here."""

    @property
    def target_count(self) -> int:
        return int(self.targets.sum())

    @property
    def oldest_version(self) -> int | None:
        if not self.has_logged or not self.targets.any():
            return None
        return int(self.version_low[self.targets].min())


def build_samples(rollout: int, turns: Sequence[Turn]) -> tuple[list[Sample], Counter[str]]:
    """Rows of one rollout, and what became of its spans: ``used`` or the reason why not, with numbers.

    Also counts ``tokens_used`` and ``tokens_excluded`` (sampled tokens). Independent of the order of ``turns``.
    """
    counts: Counter[str] = Counter()
    used: list[Turn] = []
    for turn in turns:
        reason = turn.excluded or _unusable(turn)
        counts[reason or "used"] += 1
        counts["tokens_excluded" if reason else "tokens_used"] += len(turn.completion)
        if reason is None:
            used.append(turn)
    rows = build_rows([Call(turn.id, turn.prompt, turn.completion) for turn in used])
    return [_to_sample(rollout, row, used) for row in rows], counts


def _unusable(turn: Turn) -> str | None:
    if not len(turn.completion):
        return "empty"
    if not len(turn.prompt):
        return "no_prompt_tokens"
    if turn.logprobs is not None and turn.temperature <= 0:
        return "greedy"
    return None


def _to_sample(rollout: int, row: Row, turns: Sequence[Turn]) -> Sample:
    length = len(row.tokens)
    logged, temperature = np.zeros(length, np.float32), np.ones(length, np.float32)
    low, high = np.zeros(length, np.int32), np.zeros(length, np.int32)
    owners = sorted({int(owner) for owner in row.owners if owner >= 0})
    for owner in owners:
        turn = turns[owner]
        place = slice(len(turn.prompt), len(turn.prompt) + len(turn.completion))
        if turn.logprobs is not None and turn.version_low is not None and turn.version_high is not None:
            logged[place], temperature[place] = turn.logprobs, turn.temperature
            low[place], high[place] = turn.version_low, turn.version_high
    return Sample(
        rollout=rollout,
        tokens=row.tokens,
        targets=row.owners >= 0,
        logged=logged,
        has_logged=all(turns[owner].logprobs is not None for owner in owners),
        version_low=low,
        version_high=high,
        temperature=temperature,
        span_ids=tuple(sorted(turns[owner].id for owner in owners)),
    )
