"""The one place that reads rollouts from the span log, and turns its records into what the builders work on.

Which spans can be targets is decided here for RL (the proxy's word: ``trainable``) and for SFT (any reply that went
well: words are words, whatever engine said them).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sqlalchemy import Connection, func, select

from spanlog.lineage import LineageSpan, Place, Role, analyse
from spanlog.models import Group, Rollout
from spanlog.records import SpanRecord, read_spans
from spanlog.states import Delivery, GroupState, Purpose, SpanStatus
from trainer.data.retokenize import Retokenizer, Unrenderable
from trainer.data.samples import RolloutData, Turn

NO_TOKENS = np.empty(0, np.int32)
WITHOUT_ITS_TOKENS = ("usage_count", "logprobs_count", "media")
"""Reasons of the proxy's for which logged ids are not what was read or said: rendered anew for SFT, where possible."""


def read_groups(conn: Connection, group_ids: list[str]) -> list[list[RolloutData]]:
    """The rollouts of groups in the order asked for, each with its turns, for RL."""
    query = (
        select(Rollout.group_id, Rollout.id, Rollout.reward)
        .where(Rollout.group_id.in_(group_ids))
        .order_by(Rollout.index)
    )
    rows = conn.execute(query).all()
    spans = read_spans(conn, [row.id for row in rows])
    groups: dict[str, list[RolloutData]] = {group_id: [] for group_id in group_ids}
    for row in rows:
        turns = [rl_turn(span, place) for span, place in placed(spans.get(row.id, []))]
        groups[row.group_id].append(RolloutData(row.id, row.reward, turns))
    return list(groups.values())


def count_sft_rollouts(conn: Connection, policy_id: str, *, rewarded: bool) -> int:
    """How many rollouts ``read_sft`` could return."""
    query = _sft_rollouts(policy_id, rewarded)
    return conn.execute(select(func.count()).select_from(query.subquery())).scalar_one()


def read_sft(
    conn: Connection, policy_id: str, *, limit: int, rewarded: bool, own: bool, retokenizer: Retokenizer
) -> list[RolloutData]:
    """The policy's ``limit`` oldest training rollouts in settled groups, with their turns, for SFT.

    ``rewarded`` leaves out those without a reward above zero. ``own`` says that the tokens are the trained model's.
    """
    rows = conn.execute(_sft_rollouts(policy_id, rewarded).limit(limit)).all()
    spans = read_spans(conn, [row.id for row in rows])
    return [
        RolloutData(
            row.id,
            row.reward,
            [sft_turn(span, place, own, retokenizer) for span, place in placed(spans.get(row.id, []))],
        )
        for row in rows
    ]


def _sft_rollouts(policy_id: str, rewarded: bool) -> Any:
    states = [GroupState.SETTLED, GroupState.LEASED, GroupState.CONSUMED]
    if not rewarded:
        states.append(GroupState.VOID)  # void for RL, whose rewards are missing; its words are there
    query = (
        select(Rollout.id, Rollout.reward)
        .join(Group, Group.id == Rollout.group_id)
        .where(Group.policy_id == policy_id, Group.purpose == Purpose.TRAIN, Group.state.in_(states))
        .order_by(Group.created_at, Group.id, Rollout.index)
    )
    return query.where(Rollout.reward > 0) if rewarded else query


def placed(spans: Sequence[SpanRecord]) -> list[tuple[SpanRecord, Place]]:
    """A rollout's spans, each with what lineage found."""
    places = analyse([LineageSpan.from_record(span) for span in spans]).places
    return [(span, places[span.id]) for span in spans]


def rl_turn(span: SpanRecord, place: Place) -> Turn:
    """A span as a turn whose tokens were sampled from the policy."""
    excluded = _never_a_reply(span)
    if excluded is None and not span.trainable:
        excluded = f"untrainable:{span.untrainable_reason}"
    if excluded is None and (
        span.prompt_tokens is None or span.completion_tokens is None or span.logprobs is None
    ):
        excluded = "no_tokens"
    if excluded is None:
        excluded = _no_target(place)
    return Turn(
        id=span.id,
        prompt=_array(span.prompt_tokens),
        completion=_array(span.completion_tokens),
        logprobs=span.logprobs,
        version_low=span.version_low,
        version_high=span.version_high,
        temperature=float(span.sampling.get("temperature", 1.0)),
        excluded=excluded,
    )


def sft_turn(span: SpanRecord, place: Place, own: bool, retokenizer: Retokenizer) -> Turn:
    """A span as a turn to imitate: its own tokens where they are the trained model's, else rendered ones."""
    excluded = _never_a_reply(span) or _no_target(place)
    prompt = completion = NO_TOKENS
    if excluded is None:
        try:
            prompt, completion = _sft_tokens(span, own, retokenizer)
        except Unrenderable as error:
            excluded = f"unrenderable:{error.reason}"
    return Turn(
        id=span.id,
        prompt=prompt,
        completion=completion,
        logprobs=None,
        version_low=None,
        version_high=None,
        temperature=1.0,
        excluded=excluded,
    )


def _sft_tokens(span: SpanRecord, own: bool, retokenizer: Retokenizer) -> tuple[np.ndarray, np.ndarray]:
    whole = span.untrainable_reason not in WITHOUT_ITS_TOKENS
    if own and whole and span.prompt_tokens is not None and span.completion_tokens is not None:
        return span.prompt_tokens, span.completion_tokens
    if not span.hub or not span.reply or not span.reply.get("message"):
        raise Unrenderable("no_message")
    return retokenizer.encode_turn(span.hub, span.reply["message"], cut=span.finish_reason == "length")


def _never_a_reply(span: SpanRecord) -> str | None:
    """Why the caller never had, or could not use, this reply."""
    if span.delivery == Delivery.LATE:
        return "late"
    if span.status != SpanStatus.OK:
        return str(span.status)
    return "aborted" if span.delivery == Delivery.ABORTED else None


def _no_target(place: Place) -> str | None:
    """Why lineage lets this reply be no target."""
    if place.delivery == Delivery.SUPERSEDED:
        return "superseded"
    return "side" if place.role == Role.SIDE else None


def _array(tokens: np.ndarray | None) -> np.ndarray:
    return NO_TOKENS if tokens is None else tokens
