"""One model call, from the engine's reply to the caller's last byte. Keeps I3.

Order of things: ask an engine (again, while nothing was sent) → stream what comes, up to the chunk that carries a
finish reason or completes a tool call → hold everything from there on → commit the span → let the rest out. A reply that is not streamed is held
whole. So whoever has seen an end of a reply can rely on its span; if the commit fails, the caller sees an error.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
import structlog

from proxy import asgi, contract, history, hub, sse, upstream
from proxy.auth import Caller
from proxy.capture import Capture
from proxy.dialects.base import Call, Dialect, Failure
from proxy.draft import build_draft
from proxy.engine.pool import EngineView
from proxy.errors import ClientGone, Refusal, UpstreamFailed
from proxy.outlet import Outlet
from proxy.patience import Patience
from proxy.services import Services
from spanlog.states import Mode, PolicyKind, SpanStatus, Untrainable

RETRY_BASE_S = 0.2
CLIENT_CLOSED = 499
"""Status recorded where the caller left; nginx's number, nothing is sent."""

log = structlog.get_logger("proxy.calls")


@dataclass(frozen=True, slots=True)
class Received:
    """A call as it came in."""

    span_id: str
    started_at: float
    raw: bytes
    """The request's body, byte for byte."""
    dialect: Dialect
    call: Call
    thread: str | None = None
    """The harness's own label of the line of work."""


class Exchange:
    """See the module. ``received`` was decoded and belongs to ``caller``."""

    def __init__(self, services: Services, caller: Caller, received: Received) -> None:
        self.services = services
        self.caller = caller
        self.received = received
        self.dialect, self.call = received.dialect, received.call
        if caller.policy_kind == PolicyKind.TRAIN:
            self.contract = contract.apply_training(self.call.hub, caller.sampling)
        else:
            self.contract = contract.pass_through(self.call.hub)
        self.capture = Capture()
        self.match = history.NOTHING
        self.prompt: history.Prompt | None = None
        self.engine: EngineView | None = None
        self.clamped: list[str] = []
        self.http_status = 200

    async def run(self, receive: asgi.Receive, send: asgi.Send) -> None:
        """Answers the call. Raises Refusal where nothing was asked of any engine."""
        self._refuse_by_policy()
        out = Outlet(send, getattr(self.call, "stream_type", asgi.EVENT_STREAM))
        try:
            async with asgi.CancelOnDisconnect(receive):
                self.match = await self.services.histories.match(
                    self.caller.rollout_id, self.caller.policy_id, self.call.hub
                )
                held = await self._ask(out)
        except ClientGone:
            self.http_status = CLIENT_CLOSED
            await self._commit(SpanStatus.ABORTED)
            return
        except Refusal:
            raise
        except UpstreamFailed as error:
            await self._fail(out, error)
            return
        except Exception:  # a fault of the proxy's own: the call is on record all the same
            log.exception("call failed", rollout=self.caller.rollout_id)
            await self._fail(out, _INTERNAL)
            return
        if await self._commit(SpanStatus.OK):
            await self._release(out, held)
        else:
            self.http_status = 503
            await self._send_error(out, _NOT_COMMITTED)

    def _refuse_by_policy(self) -> None:
        reason = self.contract.untrainable or self.call.untrainable
        if self.caller.mode == Mode.EXACT and contract.has_media(self.call.hub):
            raise Refusal(
                400,
                "Images and other media cannot be served in exact mode, where prompts are tokens: send text only, or "
                "set the policy's mode to observe.",
                code="media_in_exact_mode",
            )
        if self.caller.untrainable == Untrainable.REFUSE and reason is not None:
            raise Refusal(
                400,
                f"This request cannot be trained on ({reason}) and the policy refuses such requests.",
                code="untrainable_request",
            )

    async def _fail(self, out: Outlet, error: UpstreamFailed) -> None:
        self.http_status = error.status
        await self._commit(SpanStatus.REFUSED if error.status < 500 else SpanStatus.UPSTREAM_ERROR, error)
        await self._send_error(out, error)

    async def _ask(self, out: Outlet) -> bytes:
        """Tries engines until one has replied; returns what is held back until the commit."""
        settings, pool = self.services.settings, self.services.pool
        avoid: str | None = None
        failure: UpstreamFailed | None = None
        for attempt in range(1, settings.upstream_tries + 1):
            try:
                async with pool.use(self.caller.policy_id, self.caller.rollout_id, avoid) as engine:
                    return await self._attempt(engine, out)
            except Refusal:
                if failure is None:
                    raise
                raise failure from None  # no engine is left to try: an engine was asked, so there is a span
            except UpstreamFailed as error:
                failure, avoid = error, self.engine.id if self.engine else None
                log.info("engine failed", engine=avoid, attempt=attempt, status=error.status, code=error.code)
                if out.begun or not error.retryable or attempt == settings.upstream_tries:
                    raise
            self.call.restart()
            self.services.metrics.retries.inc()
            await asyncio.sleep(RETRY_BASE_S * 2 ** (attempt - 1) * random.uniform(0.5, 1.0))
        raise AssertionError("the last attempt returns or raises")

    async def _attempt(self, engine: EngineView, out: Outlet) -> bytes:
        self.engine = engine
        self.capture = Capture()
        body = dict(self.contract.body, model=self.caller.model)
        window = engine.capabilities.get("max_model_len")
        if self.caller.mode == Mode.EXACT and engine.capabilities.get("exact_tokens"):
            try:
                await self._splice(engine, body, window)
            except orjson.JSONEncodeError as error:
                raise _too_deep(error) from None
        if self.caller.policy_kind == PolicyKind.TRAIN:
            taken = len(self.prompt.tokens) if self.prompt is not None else 0
            self.clamped = contract.clamp_max_tokens(body, window and window - taken)
        if engine.kind == "vllm":
            hub.add_capture(body)
        try:
            payload = orjson.dumps(body)
        except orjson.JSONEncodeError as error:  # JSON is read to a greater depth than it is written
            raise _too_deep(error) from None
        client, path = self.services.watch.client, self.dialect.engine_path
        patience = Patience(engine, self.services.settings, out if self.call.stream else None)
        async with upstream.open_call(client, engine, path, payload, patience) as response:
            try:
                if self.call.stream:
                    held = await self._stream(response, patience, out)
                else:
                    held = await self._whole(response, patience)
                self.capture.reply()
            except (
                AttributeError,
                TypeError,
                KeyError,
            ) as error:  # fields of other types than the format has: no span could hold them
                self.capture = Capture()
                raise UpstreamFailed(f"The engine's reply is no completion: {error!r}") from error
        if self.capture.finish_reason == "abort":
            raise _aborted()
        return held

    async def _splice(self, engine: EngineView, body: dict[str, Any], window: int | None) -> None:
        """Gives the engine the exact prompt, where the request continues a recorded turn [I1]."""
        if self.prompt is None:
            client = self.services.watch.client
            self.prompt = await history.exact_prompt(client, engine, body, self.match, self.caller.history)
        if self.prompt is None:
            return
        if window and len(self.prompt.tokens) >= window:
            raise _overflow(window, len(self.prompt.tokens))
        if self.prompt.spliced:
            body["kv_transfer_params"] = {"prompt_token_ids": self.prompt.tokens}

    async def _whole(self, response: Any, patience: Patience) -> bytes:
        async with patience:
            raw = await response.read()
        reply = self.call.to_hub(upstream.parse(raw))
        if not reply.get("choices"):
            raise UpstreamFailed("The engine's reply has no choices.")
        self.capture.take_reply(reply)
        return self.call.whole(reply)

    async def _stream(self, response: Any, patience: Patience, out: Outlet) -> bytes:
        parser, held, ended, done = sse.SseParser(), [], False, False
        try:
            async with patience:
                while not done and (data := await response.content.readany()):
                    now = time.time()
                    patience.heard()
                    ready = []
                    for payload in parser.feed(data):
                        if payload == b"[DONE]":
                            done = True
                            break
                        chunk = self.call.to_hub(upstream.parse(payload))
                        ended = self.capture.take_chunk(chunk, now) or ended
                        if event := self.call.chunk(chunk):
                            (held if ended else ready).append(event)
                    if ready:
                        await self._send_events(out, b"".join(ready))
        except (TimeoutError, OSError, aiohttp.ClientError):
            if not self.capture.is_whole:
                raise
        if not self.capture.is_whole:
            raise UpstreamFailed(
                "The engine's stream ended without a finish reason.", code="engine_broke_off"
            )
        if done:
            await upstream.finish_stream(response)
        return b"".join(held) + self.call.end()

    async def _send_events(self, out: Outlet, events: bytes) -> None:
        """Sends a part of the stream. If the caller is slow to take it, later arrival times are not exact [I2]."""
        before = time.monotonic()
        await out.events(events)
        if time.monotonic() - before > self.services.stalls.limit_s:
            self.capture.times_exact = False

    async def _commit(self, status: SpanStatus, error: UpstreamFailed | None = None) -> bool:
        """Hands the span to the writer and waits until it is durable. Returns False if the database refused it."""
        metrics = self.services.metrics
        if self.services.stalls.stalled_at >= self.received.started_at:
            self.capture.times_exact = False
        if self.call.stream and not self.capture.times_exact:
            metrics.stalls.inc()
        before = time.monotonic()
        try:
            draft = build_draft(self, status, error)
            summary = await self.services.writer.write(draft)
            if summary.parent is not None:
                self.services.histories.remember(summary.parent)
        except Exception as failure:  # whatever it is, the caller must not be told that its call is on record
            metrics.commit_failures.inc()
            log.error(
                "span not committed",
                rollout=self.caller.rollout_id,
                error=f"{type(failure).__name__}: {failure}",
            )
            return False
        metrics.commit_latency.observe(time.monotonic() - before)
        metrics.count_span(status, summary.untrainable_reason)
        return True

    async def _release(self, out: Outlet, held: bytes) -> None:
        if self.call.stream:
            await out.events(held, last=True)
        else:
            await out.whole(held)

    async def _send_error(self, out: Outlet, error: UpstreamFailed) -> None:
        """In the caller's shape. In a stream that has begun: an error event, then the end."""
        failure = Failure(error.status, error.message, error.code, engine_error=error.body)
        if out.started:
            await out.events(self.call.error_event(failure), last=True)
            return
        extra = [(b"retry-after", error.retry_after.encode("latin-1"))] if error.retry_after else []
        await asgi.send_json(out.send, error.status, self.dialect.error(failure), *extra)


def _too_deep(error: Exception) -> Refusal:
    return Refusal(400, f"The request cannot be passed on: {error}.", code="invalid_request")


def _overflow(window: int, taken: int) -> UpstreamFailed:
    """In the words of OpenAI's own error, which harnesses look for when they decide to compact."""
    return UpstreamFailed(
        f"This model's maximum context length is {window} tokens. However, your messages resulted in {taken} tokens. "
        "Please reduce the length of the messages.",
        status=400,
        code="context_length_exceeded",
        retryable=False,
    )


def _aborted() -> UpstreamFailed:
    return UpstreamFailed("The engine aborted the call.", status=503, code="engine_aborted", retry_after="1")


_INTERNAL = UpstreamFailed(
    "Internal error of the proxy: see its log.", status=500, code="internal_error", retryable=False
)
_NOT_COMMITTED = UpstreamFailed(
    "The reply could not be recorded and is withheld: see the proxy's log, then try again.",
    status=503,
    code="span_not_committed",
    retry_after="1",
)
