"""The words for what state a thing is in, and the moves that are allowed."""

from __future__ import annotations

from enum import StrEnum


class Purpose(StrEnum):
    TRAIN = "train"
    EVAL = "eval"


class PolicyKind(StrEnum):
    TRAIN = "train"
    FROZEN = "frozen"


class Mode(StrEnum):
    EXACT = "exact"  # prompts are rendered, and spliced to the recorded tokens
    OBSERVE = "observe"  # requests pass as they are; where tokens drift, the history forks


class History(StrEnum):
    APPEND_ONLY = "append_only"  # recorded tokens are kept, earlier thinking included
    FAITHFUL = "faithful"  # where the template rewrites history, so does the prompt


class Untrainable(StrEnum):
    SERVE = "serve"  # answered, and marked with the reason
    REFUSE = "refuse"  # the caller gets an error


class EngineState(StrEnum):
    STALE = "stale"  # registered or restarted; does not serve the current version, so takes no traffic
    READY = "ready"
    SWAPPING = "swapping"  # paused under keep: requests are accepted and wait, none dies
    DRAINING = "draining"  # finishes what it has
    QUARANTINED = "quarantined"  # a load or a probe failed: needs a restart
    GONE = "gone"  # does not answer


class GroupState(StrEnum):
    OPEN = "open"
    SETTLED = "settled"
    LEASED = "leased"
    CONSUMED = "consumed"
    VOID = "void"  # settled with nothing to learn from


class RolloutState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    ABANDONED = "abandoned"  # heartbeat lost


class RewardState(StrEnum):
    PENDING = "pending"
    FINAL = "final"
    REVISED = "revised"
    EXPIRED = "expired"


class SpanStatus(StrEnum):
    OK = "ok"
    ABORTED = "aborted"  # the caller left
    UPSTREAM_ERROR = "upstream_error"
    REFUSED = "refused"


class Delivery(StrEnum):
    SAMPLED = "sampled"  # committed; whether the last bytes arrived is not known
    DELIVERED = "delivered"
    ABORTED = "aborted"
    LATE = "late"  # committed after its rollout had ended: changes nothing
    ADOPTED = "adopted"  # a later history contains it; found over the ended rollout (lineage), never stored
    SUPERSEDED = "superseded"  # a retry took its place; likewise


ROLLOUT_MOVES: dict[RolloutState, frozenset[RolloutState]] = {
    RolloutState.QUEUED: frozenset({RolloutState.RUNNING, RolloutState.FAILED, RolloutState.ABANDONED}),
    RolloutState.RUNNING: frozenset({RolloutState.SUCCEEDED, RolloutState.FAILED, RolloutState.ABANDONED}),
    RolloutState.SUCCEEDED: frozenset(),
    RolloutState.FAILED: frozenset(),
    RolloutState.ABANDONED: frozenset(),
}
"""Allowed moves; an ended rollout never moves again."""

ENDED_ROLLOUT_STATES = frozenset(state for state, moves in ROLLOUT_MOVES.items() if not moves)
