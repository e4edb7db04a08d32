"""Bodies of the control plane. Unknown fields are refused, so that a misspelt option is not silently ignored."""

from __future__ import annotations

import math
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, HttpUrl, ValidationInfo, field_validator, model_validator

from spanlog.text import refuse_unstorable

Id = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
"""An id that the caller chose. Safe in URLs, paths and weight labels."""
Purpose = Literal["train", "eval"]
MOST = 2**31 - 1
"""What a column of integers holds on each database."""


class Body(BaseModel):
    model_config = ConfigDict(extra="forbid")

    cleaned_later: ClassVar[frozenset[str]] = frozenset()
    """Fields for looking at: their unstorable characters are replaced, so that the call is not lost."""

    @field_validator("*")
    @classmethod
    def _is_storable(cls, value: Any, field: ValidationInfo) -> Any:
        if field.field_name not in cls.cleaned_later and not isinstance(value, BaseModel):
            refuse_unstorable(value)
        return value


class ErrorDetail(BaseModel):
    message: str
    """What is wrong, and what to do about it."""
    code: str | None
    """For programs."""


class ErrorReply(BaseModel):
    """Every error of the control plane."""

    error: ErrorDetail


class Sampling(Body):
    """The sampling parameters that the proxy owns under a training policy."""

    temperature: float = Field(default=1.0, ge=0.01)
    """Logged logprobs are of logits divided by it. Below 0.01 vLLM samples at another one than it is told."""
    top_p: float = Field(default=1.0, gt=0, le=1)
    top_k: int = Field(default=0, ge=-1, le=MOST)
    """0 or -1: no limit."""
    presence_penalty: float = Field(default=0.0, ge=-2, le=2)
    frequency_penalty: float = Field(default=0.0, ge=-2, le=2)
    repetition_penalty: float = Field(default=1.0, gt=0)


class PolicyBody(Body):
    kind: Literal["train", "frozen"]
    """``train``: weights change, the sampling contract holds. ``frozen``: requests pass as they are."""
    model: str = Field(min_length=1)
    """The model's name on its engines (``--served-model-name``)."""
    sampling: Sampling = Sampling()
    group_size: int = Field(default=8, ge=1, le=10_000)
    """Rollouts per group when the caller does not say."""
    rollouts_per_step: int = Field(default=0, ge=0, le=MOST)
    """Rollouts that one optimiser step consumes; 0 switches admission control off."""
    max_staleness: int = Field(default=0, ge=0, le=MOST)
    """In-flight plus unconsumed rollouts stay at or below (this + 1) x ``rollouts_per_step``."""
    mode: Literal["exact", "observe"] | None = None
    """``exact``: prompts are rendered and spliced to the tokens that were recorded. ``observe``: requests pass as they
    are, and where tokens drift the history forks. Default: ``exact`` for ``train``, ``observe`` for ``frozen``."""
    history: Literal["append_only", "faithful"] = "append_only"
    """``append_only`` keeps recorded tokens, earlier thinking included. ``faithful`` forks where the template rewrites
    history."""
    untrainable: Literal["serve", "refuse"] = "serve"
    """What becomes of requests whose replies cannot be trained on."""

    @model_validator(mode="after")
    def _mode_by_kind(self) -> PolicyBody:
        if self.mode is None:
            self.mode = "exact" if self.kind == "train" else "observe"
        return self


class EngineBody(Body):
    policy: Id
    base_url: HttpUrl
    """Root URL, with or without ``/v1``."""
    kind: Literal["vllm", "openai"] = "vllm"
    """``openai``: any OpenAI-compatible server; its replies carry no token ids."""


class TaskBody(Body):
    id: Id | None = None
    source: str | None = None
    payload: dict[str, Any] = {}
    """What the harness adapter and the reward function are given."""


class GroupBody(Body):
    id: Id | None = None
    """Makes the call idempotent."""
    policy: Id
    task: TaskBody
    size: int | None = Field(default=None, ge=1, le=10_000)
    """Default: the policy's ``group_size``."""
    purpose: Purpose = "train"
    deadline_s: float = Field(default=3600.0, gt=0, le=30 * 86400, allow_inf_nan=False)
    """Seconds from now after which it settles with what it has."""


class RolloutBody(Body):
    id: Id | None = None
    """Makes the call idempotent."""
    policy: Id
    task: TaskBody
    purpose: Purpose = "train"
    deadline_s: float = Field(default=3600.0, gt=0, le=30 * 86400, allow_inf_nan=False)


class ClaimBody(Body):
    runner: str = Field(min_length=1, max_length=200)
    """Who claims it; the same runner may claim again and gets a new key."""
    harness: str | None = None


class HeartbeatBody(Body):
    runner: str = Field(min_length=1, max_length=200)


class RewardBody(Body):
    name: str = Field(default="reward", min_length=1, max_length=200)
    """``reward`` is the one that trains."""
    value: float = Field(strict=True)
    """A finite number. Leave the event out where there is no reward: missing is not zero."""
    source: str = "runner"
    idempotency_key: str | None = Field(default=None, max_length=400)
    """The same key again is the same event."""
    span_id: str | None = None
    """The turn that it rewards; null for the whole rollout."""

    @field_validator("value")
    @classmethod
    def _finite(cls, value: float) -> float:
        if not math.isfinite(value):
            raise ValueError("a reward must be a finite number: leave the event out where there is none")
        return value


class FinishBody(Body):
    cleaned_later = frozenset({"error", "info"})

    state: Literal["succeeded", "failed"]
    error: str | None = None
    info: dict[str, Any] = {}
    """What to keep: exit status, output tail, durations."""
    rewards: list[RewardBody] = []
    """Added in the same transaction as the end."""
