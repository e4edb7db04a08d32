"""Earlier replies that a request names instead of repeating them (Responses API): read from the span log.

Every reply of a rollout is a span, and the ids that callers see are made from the span's, so nothing else has to be
kept. A caller finds the replies of its own rollout alone, and none that it asked not to be stored.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, TypeVar

import orjson
from sqlalchemy import Connection

from proxy.dialects import responses
from proxy.dialects.base import Call, Target
from proxy.dialects.responses import ResponsesCall
from proxy.dialects.responses.output import RESPONSE, SPAN
from proxy.errors import Refusal
from spanlog.database import Database
from spanlog.errors import SpanlogError
from spanlog.records import SpanRecord, read_chain
from spanlog.states import SpanStatus

Result = TypeVar("Result")
_SPAN_ID = re.compile(SPAN + "[0-9a-z]{26}")


async def complete(call: Call, rollout_id: str, database: Database) -> None:
    """Gives a call the items and the history that it names. Raises BadRequest where there is no such reply of the
    rollout, Refusal 503 where the span log cannot be read."""
    if isinstance(call, ResponsesCall) and (call.references or call.previous):
        await _reading(database, lambda conn: _complete(conn, call, rollout_id))


async def response(response_id: str, rollout_id: str, database: Database) -> bytes:
    """The stored response of that id, as it was first answered. Raises Refusal 404, or 503 as above."""
    span_id = SPAN + response_id.removeprefix(RESPONSE)
    found = await _reading(database, lambda conn: _find(conn, rollout_id, span_id))
    if found is None or not response_id.startswith(RESPONSE):
        raise Refusal(404, f"Response with id '{response_id}' not found.", code="response_not_found")
    call, reply = found
    choice = {"index": 0, "message": reply.get("message"), "finish_reason": reply.get("finish_reason")}
    return call.whole({"choices": [choice], "usage": reply.get("usage")})


async def _reading(database: Database, read: Callable[[Connection], Result]) -> Result:
    def run() -> Result:
        with database.read() as conn:
            return read(conn)

    try:
        return await asyncio.to_thread(run)
    except SpanlogError as error:
        message = f"The span log cannot be read: {error}"
        raise Refusal(503, message, code="span_log", retry_after=1) from error


def _complete(conn: Connection, call: ResponsesCall, rollout_id: str) -> None:
    if call.references:
        items: dict[str, dict[str, Any]] = {}
        for span_id in set(call.references.values()):
            if found := _find(conn, rollout_id, span_id):
                earlier, reply = found
                items |= {item["id"]: item for item in earlier.output_items(reply.get("message") or {})}
        call.complete_items(items)
    if call.previous:
        found = _find(conn, rollout_id, call.previous)
        if found is None:
            raise responses.not_found(RESPONSE + call.previous.removeprefix(SPAN))
        earlier, reply = found
        call.resume([*earlier.hub["messages"], earlier.as_history(reply.get("message") or {})])


def _find(conn: Connection, rollout_id: str, span_id: str) -> tuple[ResponsesCall, dict[str, Any]] | None:
    """The call and the reply of a span, with the call's whole history and without its instructions, which hold for it
    alone; None where there is nothing that the caller may name."""
    span = _read_span(conn, rollout_id, span_id)
    if span is None or span.status != SpanStatus.OK or span.dialect != responses.name or span.reply is None:
        return None
    call = responses.decode(orjson.dumps(span.request), Target(span.id, span.started_at))
    if not call.stored:
        return None
    call.hub["messages"] = span.hub["messages"][len(call.instructions) :]
    return call, span.reply


def _read_span(conn: Connection, rollout_id: str, span_id: str) -> SpanRecord | None:
    if not _SPAN_ID.fullmatch(span_id):  # it comes from the caller, and may hold what a database cannot
        return None
    span = read_chain(conn, span_id)
    return span if span is not None and span.rollout_id == rollout_id else None
