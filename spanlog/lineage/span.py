"""A span as lineage sees it: plain values, made from a record once, so that the rules need no database and no JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from spanlog.arrays import Ints
from spanlog.canonical import (
    call_places,
    canonical_message,
    canonical_tools,
    context_hashes,
    context_key,
    digest,
    extend_hash,
    is_reply,
    reply_form,
)
from spanlog.matching import Echo, read_echo
from spanlog.records import SpanRecord
from spanlog.states import Delivery, SpanStatus

BARE = bytes(20)
"""The key under which histories are compared without tools and settings."""


@dataclass(frozen=True, slots=True)
class Item:
    """A message of a request."""

    role: str
    digest: bytes
    said: bytes | None
    """Of an assistant's message: the digest of the reply that it repeats (``reply_form``)."""
    texts: tuple[str, ...]
    """Of its text parts, outer white space removed."""
    echo: Echo | None
    """Of an assistant's message: what breaks ties between equal turns."""


@dataclass(frozen=True, slots=True)
class LineageSpan:
    """One model call."""

    id: str
    started_at: float
    ended_at: float
    status: str = SpanStatus.OK
    delivery: str = Delivery.SAMPLED
    thread: str | None = None
    parent_id: str | None = None
    fork_cause: str | None = None
    fork_token: int | None = None
    """The three as they were recorded while the rollout ran."""
    prompt: Ints | None = None
    """int32 [p]; null: the engine gave none."""
    completion: Ints | None = None
    """int32 [n]."""
    items: tuple[Item, ...] = ()
    """Messages of the request; none for text completions."""
    hashes: tuple[str, ...] = ()
    """Context hash after each message, under the key ``BARE``."""
    key: bytes = b""
    """Digest of policy, tools and settings."""
    tools: bytes | None = None
    """Digest; null: it has none."""
    system: bytes | None = None
    """Digest of the system messages that it begins with; null: there are none."""
    said: bytes | None = None
    """Digest of the reply (``reply_form``); null: there was none, or its text is empty."""
    context: str | None = None
    """Context hash of messages and reply, under the key ``BARE``."""
    reply: Echo | None = None
    asked: tuple[str, ...] = ()
    """Texts in the arguments of the reply's tool calls: what a sub-agent is told comes from there."""

    @property
    def order(self) -> tuple[float, str]:
        """Calls follow one another in this order; a call continues only earlier ones."""
        return self.started_at, self.id

    @property
    def stands(self) -> bool:
        """Whether there was a reply, in time, that its caller can have used."""
        return self.status == SpanStatus.OK and self.delivery not in (Delivery.LATE, Delivery.ABORTED)

    @property
    def kind(self) -> tuple[bytes | None, bytes | None]:
        """What tells one sort of agent from another: its tools and its system prompt."""
        return self.tools, self.system

    @property
    def history(self) -> str | None:
        """Context hash of the whole request, under the key ``BARE``."""
        return self.hashes[-1] if self.hashes else None

    @staticmethod
    def from_record(record: SpanRecord) -> LineageSpan:
        """What lineage needs of a span as it was read."""
        hub = record.hub
        messages = hub.get("messages") if isinstance(hub, dict) else None
        messages = [one for one in messages if isinstance(one, dict)] if isinstance(messages, list) else []
        hashes = context_hashes(BARE, messages)
        reply = (record.reply or {}).get("message") or None
        tools = canonical_tools(hub.get("tools")) if messages else None
        items = tuple(read_items(messages))
        return LineageSpan(
            id=record.id,
            started_at=record.started_at,
            ended_at=record.ended_at,
            status=record.status,
            delivery=record.delivery,
            thread=record.thread,
            parent_id=record.parent_id,
            fork_cause=record.fork_cause,
            fork_token=record.fork_token,
            prompt=record.prompt_tokens,
            completion=record.completion_tokens,
            items=items,
            hashes=tuple(hashes),
            key=context_key(hub, policy_id=record.policy_id) if messages else b"",
            tools=digest(tools) if tools else None,
            system=read_system(items),
            said=read_said(reply) if reply else None,
            context=extend_hash(hashes[-1], reply) if reply and hashes else None,
            reply=read_echo(reply) if reply else None,
            asked=tuple(argument_texts(reply)) if reply else (),
        )


def read_items(messages: list[dict[str, Any]]) -> Iterator[Item]:
    places: dict[str, int] = {}
    for message in messages:
        canonical = canonical_message(message, places)
        said = echo = None
        if is_reply(message):
            places = call_places(message)
            said, echo = read_said(message), read_echo(message)
        role = canonical[0] if isinstance(canonical[0], str) else ""
        yield Item(role, digest(canonical), said, tuple(part_texts(message.get("content"))), echo)


def read_system(items: tuple[Item, ...]) -> bytes | None:
    first = next((place for place, item in enumerate(items) if item.role != "system"), len(items))
    return b"".join(item.digest for item in items[:first]) or None


def read_said(message: Mapping[str, Any]) -> bytes | None:
    canonical = reply_form(canonical_message(message))
    return digest(canonical) if canonical[1] or canonical[2] else None


def part_texts(content: Any) -> Iterator[str]:
    for part in content if isinstance(content, list) else [content]:
        text = part.get("text") if isinstance(part, dict) else part
        if isinstance(text, str) and text.strip():
            yield text.strip()


def argument_texts(reply: Mapping[str, Any]) -> Iterator[str]:
    for call in reply.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if isinstance(arguments, str):
            with contextlib.suppress(orjson.JSONDecodeError, UnicodeEncodeError):
                arguments = orjson.loads(arguments)
        stack = [arguments]
        while stack:
            value = stack.pop()
            if isinstance(value, str) and value.strip():
                yield value.strip()
            elif isinstance(value, dict):
                stack.extend(value.values())
            elif isinstance(value, list):
                stack.extend(value)
