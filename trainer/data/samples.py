"""From one rollout's spans to training samples, by explicit and counted rules [I7].

A span is a target if it went well and nothing took its place; everything else is at most context. What was left out,
and why, is counted, so that a builder never loses tokens in silence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from trainer.data.tree import Call, Row, Tokens, build_rows, common_prefix_length

BUILDER = "rows/1"
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
    started_at: float
    ended_at: float
    excluded: str | None = None
    """Why it can be no target (``late``, ``aborted``, ``untrainable:forced_tool_choice``); None if it can."""
    stands: bool = True
    """False if it never was a reply (late, aborted, failed): then it cannot have taken another's place either."""


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
    replaced = superseded([turn for turn in turns if turn.stands])
    used: list[Turn] = []
    for turn in turns:
        reason = turn.excluded or _unusable(turn) or ("superseded" if turn.id in replaced else None)
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


def superseded(turns: Sequence[Turn]) -> set[str]:
    """Ids of spans whose place a retry took, or that were themselves a retry in vain.

    Two calls of one rollout with the same prompt tokens, of which the second began after the first had ended, are a
    call and its retry. The one whose reply a later prompt contains stands; if neither is contained, the later one.
    Two that overlap in time are parallel samples: both stand. So do two that are both contained (two branches).
    """
    by_prompt: dict[bytes, list[Turn]] = {}
    for turn in turns:
        by_prompt.setdefault(turn.prompt.tobytes(), []).append(turn)
    replaced: set[str] = set()
    for repeated in by_prompt.values():
        if len(repeated) < 2:
            continue
        adopted = {turn.id for turn in repeated if _is_adopted(turn, turns)}
        for first in repeated:
            for second in repeated:
                if first.ended_at > second.started_at or first is second:
                    continue
                if first.id not in adopted:
                    replaced.add(first.id)
                elif second.id not in adopted:
                    replaced.add(second.id)
    return replaced


def _is_adopted(turn: Turn, turns: Sequence[Turn]) -> bool:
    if not len(turn.completion):
        return False  # its own prompt would contain it
    whole = np.concatenate([turn.prompt, turn.completion])
    return any(
        len(other.prompt) >= len(whole) and common_prefix_length(other.prompt, whole) == len(whole)
        for other in turns
    )


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
