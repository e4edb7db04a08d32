"""A finished exchange as the draft of its span."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from proxy import history, validity
from proxy.errors import UpstreamFailed
from spanlog.drafts import SpanDraft
from spanlog.states import Delivery, PolicyKind, SpanStatus
from spanlog.text import finite

if TYPE_CHECKING:
    from proxy.exchange import Exchange


def build_draft(exchange: Exchange, status: SpanStatus, error: UpstreamFailed | None) -> SpanDraft:
    capture, caller, received = exchange.capture, exchange.caller, exchange.received
    reason = _untrainable(exchange, status)
    fork_cause, fork_token = history.fork_of(exchange.match, exchange.prompt, capture.prompt_ids)
    if fork_cause == history.IGNORED and reason is None:
        reason = fork_cause
    reply = capture.reply()
    mismatch = len(capture.logprobs) != len(capture.completion_ids or ())
    return SpanDraft(
        rollout_id=caller.rollout_id,
        policy_id=caller.policy_id,
        engine_id=exchange.engine.id if exchange.engine else None,
        id=received.span_id,
        dialect=exchange.dialect.name,
        mode=caller.mode,
        stream=exchange.call.stream,
        status=status,
        delivery=Delivery.ABORTED if status == SpanStatus.ABORTED else Delivery.SAMPLED,
        trainable=reason is None,
        untrainable_reason=reason,
        prompt_tokens=capture.prompt_ids,
        completion_tokens=capture.completion_ids,
        logprobs=None if mismatch else capture.logprob_array(),
        received_at=capture.received_at(),
        request=received.raw,
        reply=reply,
        hub=None if exchange.dialect.name == "chat" else exchange.call.hub,
        parent=exchange.match.parent,
        fork_cause=fork_cause,
        fork_token=fork_token,
        thread=received.thread,
        context_hash=exchange.match.context_hash(reply),
        sampling=exchange.contract.sampling,
        stripped=sorted({*exchange.contract.stripped, *exchange.clamped, *exchange.call.ignored}),
        finish_reason=capture.finish_reason,
        stop_reason=capture.stop_reason,
        upstream_id=capture.upstream_id,
        http_status=exchange.http_status,
        error=_error(error, capture.logprobs if mismatch else None),
        started_at=received.started_at,
        first_token_at=capture.first_token_at,
        ended_at=time.time(),
    )


def _untrainable(exchange: Exchange, status: SpanStatus) -> str | None:
    """Why the span's tokens must not be trained on. A frozen policy's reply without tokens is retokenized later."""
    if status != SpanStatus.OK:
        return str(status)
    if reason := exchange.contract.untrainable or exchange.call.untrainable:
        return reason
    engine = exchange.engine
    if exchange.caller.policy_kind == PolicyKind.FROZEN and engine is not None and engine.kind != "vllm":
        return None
    capture = exchange.capture
    return validity.check_tokens(
        prompt_ids=capture.prompt_ids,
        completion_ids=capture.completion_ids,
        logprobs=capture.logprobs,
        usage=capture.usage,
    )


def _error(error: UpstreamFailed | None, odd_logprobs: list[float | None] | None) -> dict[str, Any] | None:
    """What failed; and logprobs that no token can be told to have, kept here since they fit no column."""
    if odd_logprobs:
        return {"message": "as many logprobs as tokens were expected", "logprobs": finite(odd_logprobs)}
    if error is None:
        return None
    return {"message": error.message, "code": error.code, "status": error.status}
