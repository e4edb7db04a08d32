"""The tables: the one contract between proxy and trainer.

Times are Unix seconds in UTC as double precision (columns named ``*_at``): the versions of tokens are decided by
comparing them, on both databases, to the microsecond. Ids are sortable text (see ``spanlog.ids``). Tokens, logprobs
and versions are binary arrays (see ``spanlog.arrays``). Enumerations are text, checked by the code that writes them
(see ``spanlog.states``).
"""

from __future__ import annotations

from typing import Any, ClassVar

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Double,
    ForeignKey,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Text,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from spanlog.states import History, Mode, Untrainable

Json = JSON(none_as_null=True).with_variant(JSONB(none_as_null=True), "postgresql")
"""A JSON column: small, structured, never tokens."""


class Base(DeclarativeBase):
    """Names every constraint, so that migrations can drop them on both databases."""

    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "fk": "fk_%(table_name)s_%(column_0_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: Json,
        list[Any]: Json,
        float: Double,
        bytes: LargeBinary,
        str: String,
    }


class Policy(Base):
    """A model that rollouts sample from, under one name."""

    __tablename__ = "policies"

    id: Mapped[str] = mapped_column(primary_key=True)
    """The name that a harness may send as ``model``."""
    kind: Mapped[str]
    """``train`` (weights change; the sampling contract holds) or ``frozen`` (teachers; requests pass as they are)."""
    model: Mapped[str]
    """The model's name on its engines (``--served-model-name``)."""
    version: Mapped[int] = mapped_column(default=0)
    """The newest published version; +1 at each publish, never reused, never lowered. The compare-and-swap target."""
    committed_version: Mapped[int] = mapped_column(default=0)
    """The version of the newest committed train step; above ``version`` while a publish is due."""
    fence: Mapped[int] = mapped_column(default=0)
    """Fencing token: +1 whenever a trainer takes the policy over; every commit checks it."""
    sampling: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """The sampling parameters that the proxy owns under a training policy (temperature, top_p, top_k, penalties)."""
    group_size: Mapped[int] = mapped_column(default=8)
    """Rollouts per group when the caller does not say."""
    rollouts_per_step: Mapped[int] = mapped_column(default=0)
    """Rollouts that one optimiser step consumes; 0 switches admission control off."""
    max_staleness: Mapped[int] = mapped_column(default=0)
    """Admission bound: in-flight plus unconsumed rollouts stay at or below (this + 1) x ``rollouts_per_step``."""
    mode: Mapped[str] = mapped_column(default=Mode.OBSERVE, server_default=Mode.OBSERVE)
    """``exact`` (prompts are rendered and spliced to recorded tokens [I1]) or ``observe`` (passed on as they are)."""
    history: Mapped[str] = mapped_column(default=History.APPEND_ONLY, server_default=History.APPEND_ONLY)
    """``append_only`` (recorded tokens are kept) or ``faithful`` (forks where the template rewrites history)."""
    untrainable: Mapped[str] = mapped_column(default=Untrainable.SERVE, server_default=Untrainable.SERVE)
    """``serve`` or ``refuse``: what becomes of requests whose replies cannot be trained on."""
    created_at: Mapped[float]


class PolicyVersion(Base):
    """One set of weights of a policy."""

    __tablename__ = "policy_versions"

    policy_id: Mapped[str] = mapped_column(ForeignKey("policies.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    path: Mapped[str | None]
    """Folder of the weights that engines load; null for an engine's base weights."""
    state: Mapped[str]
    """``staged`` (written, not yet served), ``published``, ``failed`` (no engine loaded it)."""
    step_id: Mapped[str | None] = mapped_column(ForeignKey("train_steps.id"))
    created_at: Mapped[float]
    published_at: Mapped[float | None]


class Engine(Base):
    """One inference server."""

    __tablename__ = "engines"

    id: Mapped[str] = mapped_column(primary_key=True)
    policy_id: Mapped[str] = mapped_column(ForeignKey("policies.id"), index=True)
    base_url: Mapped[str]
    """Root URL without ``/v1``."""
    kind: Mapped[str]
    """``vllm`` (tokens, logprobs, weight swap) or ``openai`` (text only: a teacher; spans are retokenized later)."""
    state: Mapped[str]
    """See ``states.EngineState``; only ``ready`` and ``swapping`` engines take traffic."""
    version: Mapped[int | None]
    """The policy version it serves; null when unknown (just registered, restarted, or quarantined mid-load)."""
    capabilities: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """What registration found: vLLM version, logprobs mode, exact tokens, window, weight route."""
    error: Mapped[str | None] = mapped_column(Text)
    """Why it is quarantined, in one line."""
    registered_at: Mapped[float]
    seen_at: Mapped[float]
    """Last successful health check."""


class EngineSwap(Base):
    """The swap clock [I2]: tokens received before ``begin_at`` are of the old version, after ``end_at`` of the new."""

    __tablename__ = "engine_swaps"
    __table_args__ = (Index(None, "engine_id", "begin_at"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    engine_id: Mapped[str] = mapped_column(ForeignKey("engines.id"))
    old_version: Mapped[int | None]
    new_version: Mapped[int]
    begin_at: Mapped[float]
    """Committed after the engine acknowledged the pause."""
    end_at: Mapped[float | None]
    """Committed before the engine resumes; null while swapping, or for ever if the load failed."""
    voided: Mapped[bool] = mapped_column(Boolean, default=False)
    """True if the probe after resume failed: tokens received since ``end_at`` are untrainable."""


class Task(Base):
    """One problem."""

    __tablename__ = "tasks"

    id: Mapped[str] = mapped_column(primary_key=True)
    source: Mapped[str | None]
    payload: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """What the harness adapter and the reward function are given."""
    created_at: Mapped[float]


class Group(Base):
    """The rollouts of one task that the advantage compares."""

    __tablename__ = "groups"
    __table_args__ = (Index(None, "policy_id", "purpose", "state", "id"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    policy_id: Mapped[str] = mapped_column(ForeignKey("policies.id"))
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"))
    purpose: Mapped[str]
    """``train`` or ``eval``; the trainer can never lease eval."""
    size: Mapped[int]
    state: Mapped[str]
    """See ``states.GroupState``: open, settled, leased, consumed, void."""
    deadline_at: Mapped[float]
    """When it settles with what it has; rewards still pending then are ``expired``."""
    lease_owner: Mapped[str | None]
    lease_fence: Mapped[int | None]
    lease_expires_at: Mapped[float | None]
    step_id: Mapped[str | None] = mapped_column(ForeignKey("train_steps.id"))
    """The step that consumed it [I6]."""
    created_at: Mapped[float]
    settled_at: Mapped[float | None]


class Rollout(Base):
    """One execution of one harness on one task."""

    __tablename__ = "rollouts"

    id: Mapped[str] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.id"), index=True)
    policy_id: Mapped[str] = mapped_column(ForeignKey("policies.id"))
    purpose: Mapped[str]
    index: Mapped[int]
    """Position within the group, from 0."""
    state: Mapped[str] = mapped_column(index=True)
    """See ``states.RolloutState``: queued, running, succeeded, failed, abandoned."""
    harness: Mapped[str | None]
    runner: Mapped[str | None]
    """Who claimed it."""
    reward_state: Mapped[str]
    """See ``states.RewardState``: pending, final, revised, expired."""
    reward: Mapped[float | None]
    """The settled reward; null means missing, which is not zero [I4]."""
    error: Mapped[str | None] = mapped_column(Text)
    info: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """What the runner wants to keep: exit status, output tail, durations."""
    created_at: Mapped[float]
    started_at: Mapped[float | None]
    heartbeat_at: Mapped[float | None]
    ended_at: Mapped[float | None]


class Span(Base):
    """One model call. Written once, whole, before the caller has its last event [I3]; never updated by the proxy."""

    __tablename__ = "spans"
    __table_args__ = (Index(None, "rollout_id", "context_hash"),)

    id: Mapped[str] = mapped_column(primary_key=True)
    """Sorts by the time at which the call was received."""
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"))
    policy_id: Mapped[str] = mapped_column(ForeignKey("policies.id"))
    engine_id: Mapped[str | None]
    dialect: Mapped[str]
    """``chat`` now; the other dialects come with their decoders."""
    mode: Mapped[str]
    """``observe`` or ``exact``."""
    stream: Mapped[bool]
    status: Mapped[str]
    """See ``states.SpanStatus``: ok, aborted (caller left), upstream_error, refused."""
    delivery: Mapped[str]
    """See ``states.Delivery``: what became of the reply as far as the proxy saw: sampled, delivered, aborted, late."""
    trainable: Mapped[bool]
    untrainable_reason: Mapped[str | None]
    """Machine-readable cause, e.g. ``forced_tool_choice``; null if trainable."""

    parent_id: Mapped[str | None] = mapped_column(ForeignKey("spans.id"))
    """Delta storage [I5]: the span of the same rollout whose tokens and messages this one is stored as a change of.
    Without ``fork_cause``, its tokens are an exact extension of the parent's prompt + completion."""
    fork_cause: Mapped[str | None]
    """Why the tokens do not extend the parent's; machine-readable."""
    fork_token: Mapped[int | None]
    """Position in the parent's prompt + completion of the first token that differs, where there was a fork."""
    thread: Mapped[str | None]
    """The harness's own label of the line of work, where it sends one."""
    shared_tokens: Mapped[int] = mapped_column(default=0)
    """Number of leading prompt tokens taken from the parent's prompt + completion."""
    prompt_tokens: Mapped[bytes | None]
    """Array codec, int32: prompt ids from ``shared_tokens`` on. Null: the engine gave none (retokenize)."""
    completion_tokens: Mapped[bytes | None]
    """Array codec, int32: sampled ids, end of turn included."""
    logprobs: Mapped[bytes | None]
    """Array codec, float32: one per completion token, of the distribution that was sampled from."""
    version_low: Mapped[bytes | None]
    """Array codec, int32: one per completion token, oldest version that can have sampled it [I2]."""
    version_high: Mapped[bytes | None]
    """Array codec, int32: newest such version; equal to ``version_low`` when known exactly."""
    oldest_version: Mapped[int | None]
    """Least of ``version_low``: what staleness counts."""
    prompt_count: Mapped[int] = mapped_column(default=0)
    completion_count: Mapped[int] = mapped_column(default=0)

    request_hash: Mapped[str | None] = mapped_column(ForeignKey("blobs.hash"))
    """The request: with ``history_key``, its change against the parent's but for the history and tools, else the body
    as the harness sent it. See ``spanlog.delta`` for the formats."""
    reply_hash: Mapped[str | None] = mapped_column(ForeignKey("blobs.hash"))
    """The reply in hub terms: the assistant message, finish reason and usage (JSON)."""
    history_key: Mapped[str | None]
    """Delta storage [I5]: the request's field that holds the history: messages, input, contents or prompt; null: the
    request is stored whole, byte for byte."""
    shared_messages: Mapped[int] = mapped_column(default=0, server_default="0")
    """Number of leading items of the history taken from the parent's."""
    messages_delta: Mapped[str | None] = mapped_column(ForeignKey("blobs.hash"))
    """The items of the history from ``shared_messages`` on; null: none."""
    tools_hash: Mapped[str | None] = mapped_column(ForeignKey("blobs.hash"))
    """The tool list; null: the parent's."""
    hub_hash: Mapped[str | None] = mapped_column(ForeignKey("blobs.hash"))
    """The same four for the request in hub terms (a chat completion); null: it is the request itself."""
    hub_shared_messages: Mapped[int] = mapped_column(default=0, server_default="0")
    hub_messages_delta: Mapped[str | None] = mapped_column(ForeignKey("blobs.hash"))
    hub_tools_hash: Mapped[str | None] = mapped_column(ForeignKey("blobs.hash"))
    context_hash: Mapped[str | None]
    """Rolling hash of messages and reply for lineage; null for replies that no history can name (several choices, no messages)."""

    sampling: Mapped[dict[str, Any]] = mapped_column(default=dict)
    """The sampling parameters actually sent to the engine; ``temperature`` is what the logprobs are scaled by."""
    stripped: Mapped[list[Any]] = mapped_column(default=list)
    """Names of request fields that the sampling contract removed or replaced."""
    finish_reason: Mapped[str | None]
    stop_reason: Mapped[str | None]
    """vLLM's: the stop string or token that ended it, as text."""
    upstream_id: Mapped[str | None]
    http_status: Mapped[int]
    error: Mapped[dict[str, Any] | None] = mapped_column(Json)
    started_at: Mapped[float]
    first_token_at: Mapped[float | None]
    ended_at: Mapped[float]


class Blob(Base):
    """Content-addressed JSON documents: stored once, however many spans name them."""

    __tablename__ = "blobs"

    hash: Mapped[str] = mapped_column(primary_key=True)
    """BLAKE2b-256 of the uncompressed bytes, hex."""
    codec: Mapped[str]
    """``raw`` or ``zlib``."""
    data: Mapped[bytes]


class Reward(Base):
    """A reward event; events are only added."""

    __tablename__ = "rewards"

    id: Mapped[str] = mapped_column(primary_key=True)
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), index=True)
    span_id: Mapped[str | None] = mapped_column(ForeignKey("spans.id"))
    """The turn that it rewards; null for the whole rollout."""
    name: Mapped[str]
    """``reward`` is the one that trains; others are kept for looking at."""
    value: Mapped[float]
    source: Mapped[str]
    idempotency_key: Mapped[str] = mapped_column(unique=True)
    after_consumption: Mapped[bool] = mapped_column(Boolean, default=False)
    """True if it came when the group was leased or consumed: recorded only, as long as the group does not come back."""
    created_at: Mapped[float]


class TrainStep(Base):
    """One optimiser step; its row and its groups' consumption are one transaction, which is the truth [I6]."""

    __tablename__ = "train_steps"

    id: Mapped[str] = mapped_column(primary_key=True)
    policy_id: Mapped[str] = mapped_column(ForeignKey("policies.id"), index=True)
    number: Mapped[int]
    """Counts the policy's steps from 1 over all stages."""
    stage: Mapped[str]
    """Name of the recipe's stage."""
    fence: Mapped[int]
    version: Mapped[int]
    """The policy version that this step made."""
    checkpoint_path: Mapped[str | None]
    """Folder with weights, optimiser, schedule and RNG; null where the recipe skips it (then a restart voids the step)."""
    void: Mapped[bool] = mapped_column(Boolean, default=False)
    """True once a restart went back before it."""
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    started_at: Mapped[float]
    committed_at: Mapped[float]


class TrainSample(Base):
    """What a step trained on: which spans became which row."""

    __tablename__ = "train_samples"

    id: Mapped[str] = mapped_column(primary_key=True)
    step_id: Mapped[str] = mapped_column(ForeignKey("train_steps.id"), index=True)
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), index=True)
    span_ids: Mapped[list[Any]] = mapped_column(default=list)
    """The spans whose completions are targets in this row."""
    builder: Mapped[str]
    """Builder name and version [I12]."""
    config_hash: Mapped[str]
    token_count: Mapped[int]
    target_count: Mapped[int]
    advantage: Mapped[float]
    oldest_version: Mapped[int | None]


class Metric(Base):
    """Scalars over steps, for plots."""

    __tablename__ = "metrics"
    __table_args__ = (Index(None, "policy_id", "name", "step"),)

    id: Mapped[int] = mapped_column(
        BigInteger().with_variant(Integer, "sqlite"), primary_key=True, autoincrement=True
    )
    policy_id: Mapped[str] = mapped_column(ForeignKey("policies.id"))
    step: Mapped[int]
    name: Mapped[str]
    value: Mapped[float]
    at: Mapped[float]


class Key(Base):
    """A secret, hashed: the key itself is shown once and kept nowhere."""

    __tablename__ = "keys"

    hash: Mapped[str] = mapped_column(primary_key=True)
    """SHA-256 of the secret, hex; secrets carry 256 random bits, so no salt is needed."""
    scope: Mapped[str]
    """``agent`` (one rollout's data plane), ``runner`` (groups, rollouts, rewards, reading), ``admin`` (all)."""
    rollout_id: Mapped[str | None] = mapped_column(ForeignKey("rollouts.id"), index=True)
    label: Mapped[str | None]
    created_at: Mapped[float]
    revoked_at: Mapped[float | None]
