"""A finished exchange as the draft of its span."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from spanlog.writer import SpanDraft

from proxy import validity
from proxy.errors import UpstreamFailed
from spanlog.ids import new_id
from spanlog.states import Delivery, PolicyKind, SpanStatus

if TYPE_CHECKING:
    from proxy.exchange import Exchange


def build_draft(exchange: Exchange, status: SpanStatus, error: UpstreamFailed | None) -> SpanDraft:
    capture, caller = exchange.capture, exchange.caller
    reason = _untrainable(exchange, status)
    return SpanDraft(
        id=new_id("spn"),
        rollout_id=caller.rollout_id,
        policy_id=caller.policy_id,
        engine_id=exchange.engine.id if exchange.engine else None,
        dialect="chat",
        mode="observe",
        stream=exchange.asked.stream,
        status=status,
        delivery=Delivery.ABORTED if status == SpanStatus.ABORTED else Delivery.SAMPLED,
        trainable=reason is None,
        untrainable_reason=reason,
        prompt_tokens=capture.prompt_ids,
        completion_tokens=capture.completion_ids,
        logprobs=capture.logprobs if capture.completion_ids is not None else None,
        received_at=capture.received_at(),
        request=exchange.raw,
        reply=capture.reply(),
        sampling=exchange.contract.sampling,
        stripped=exchange.contract.stripped,
        finish_reason=capture.finish_reason,
        stop_reason=capture.stop_reason,
        upstream_id=capture.upstream_id,
        http_status=exchange.http_status,
        error=_error(error),
        started_at=exchange.started_at,
        first_token_at=capture.first_token_at,
        ended_at=time.time(),
    )


def _untrainable(exchange: Exchange, status: SpanStatus) -> str | None:
    """Why the span's tokens must not be trained on. A frozen policy's reply without tokens is retokenized later."""
    if status != SpanStatus.OK:
        return str(status)
    if exchange.contract.untrainable:
        return exchange.contract.untrainable
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


def _error(error: UpstreamFailed | None) -> dict[str, Any] | None:
    if error is None:
        return None
    return {"message": error.message, "code": error.code, "status": error.status}
