"""What one call's span will hold, gathered while the engine's reply passes by.

Token ids, logprobs and arrival times come as the engine sent them; nothing is derived from text. Arrival is the time at
which the chunk was read from the socket: the span log's writer compares it with the swap clock to label each token
with its version [I2]. Where reading was held up (a slow caller), the times would be too late: ``times_exact`` is then
false and the tokens get the closed range of versions over the whole call.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from proxy.hub import MessageBuilder
from spanlog.text import finite


class Capture:
    """The reply of one attempt. Of several choices (n > 1, never trained on) the first gives the tokens."""

    def __init__(self) -> None:
        self.prompt_ids: list[int] | None = None
        self.completion_ids: list[int] | None = None
        self.logprobs: list[float | None] = []
        self.usage: dict[str, Any] | None = None
        self.upstream_id: str | None = None
        self.finish_reason: str | None = None
        self.stop_reason: str | None = None
        self.first_token_at: float | None = None
        self.times_exact = True
        self.messages: dict[int, dict[str, Any]] = {}
        self._builders: dict[int, MessageBuilder] = {}
        self._arrivals: list[tuple[float, int]] = []
        self._open: set[int] = set()

    @property
    def is_whole(self) -> bool:
        """Whether every choice of a stream that began has ended."""
        return self.finish_reason is not None and not self._open

    def take_reply(self, reply: dict[str, Any]) -> None:
        """A whole reply; no arrival times are known."""
        self._take_top(reply)
        for choice in reply.get("choices") or ():
            index = choice.get("index", 0)
            self.messages[index] = choice.get("message") or {}
            if index == 0:
                self._take_tokens(choice)
                self._take_end(choice)

    def take_chunk(self, chunk: dict[str, Any], now: float) -> bool:
        """A chunk of a stream that was read at ``now``.

        Returns True if it carries a finish reason or completes a tool call: a caller may act on it [I3].
        """
        self._take_top(chunk)
        ends = False
        for choice in chunk.get("choices") or ():
            index = choice.get("index", 0)
            if delta := choice.get("delta"):
                builder = self._builders.get(index)
                if builder is None:
                    builder = self._builders[index] = MessageBuilder()
                ends = builder.add(delta) or ends
            if choice.get("finish_reason") is not None:
                ends = True
                self._open.discard(index)
            else:
                self._open.add(index)
            if index == 0:
                count = self._take_tokens(choice)
                if count:
                    self._arrivals.append((now, count))
                if self.first_token_at is None and (count or (delta and delta.get("content"))):
                    self.first_token_at = now
                self._take_end(choice)
        return ends

    def received_at(self) -> np.ndarray | None:
        """Arrival of each completion token, float64 Unix seconds; None where it is not known."""
        if not self._arrivals or not self.times_exact:
            return None
        times, counts = zip(*self._arrivals, strict=True)
        return np.repeat(np.asarray(times, dtype=np.float64), counts)

    def logprob_array(self) -> np.ndarray | None:
        """Float64, one per logprob received, NaN where the engine sent no number; None without token ids."""
        if self.completion_ids is None:
            return None
        try:
            return np.asarray(self.logprobs, dtype=np.float64)  # null becomes NaN
        except (TypeError, ValueError):
            numbers = [value if isinstance(value, int | float) else np.nan for value in self.logprobs]
            return np.asarray(numbers, dtype=np.float64)

    def reply(self) -> dict[str, Any] | None:
        """The reply in hub terms: message, finish reason, usage; all messages under ``choices`` if there are more."""
        for index, builder in self._builders.items():
            self.messages[index] = builder.build()
        if not self.messages:
            return None
        reply: dict[str, Any] = {
            "message": self.messages.get(0, {}),
            "finish_reason": self.finish_reason,
            "usage": finite(self.usage),
        }
        if len(self.messages) > 1:
            reply["choices"] = [
                {"index": index, "message": self.messages[index]} for index in sorted(self.messages)
            ]
        return reply

    def _take_top(self, reply: dict[str, Any]) -> None:
        if self.upstream_id is None:
            self.upstream_id = reply.get("id")
        if (ids := reply.get("prompt_token_ids")) is not None and self.prompt_ids is None:
            self.prompt_ids = ids
        if (usage := reply.get("usage")) is not None:
            self.usage = dict(usage)

    def _take_tokens(self, choice: dict[str, Any]) -> int:
        ids = choice.get("token_ids")
        if ids is not None:
            if self.completion_ids is None:
                self.completion_ids = []
            self.completion_ids += ids
        content = (choice.get("logprobs") or {}).get("content")
        if content:
            self.logprobs += [entry["logprob"] for entry in content]
        return len(ids) if ids else 0

    def _take_end(self, choice: dict[str, Any]) -> None:
        if choice.get("finish_reason") is not None:
            self.finish_reason = choice["finish_reason"]
            stop_reason = choice.get("stop_reason")
            self.stop_reason = None if stop_reason is None else str(stop_reason)


class StallWatch:
    """Notices when the event loop stood still, which makes arrival times too late [I2].

    A timer that is due every ``tick_s`` and runs ``limit_s`` late or later sets ``stalled_at``; any stall longer than
    ``tick_s + limit_s`` is seen. Their sum is below ``guard_s``, the lateness that the span log's labels allow for.
    Calls that overlap with a stall fall back to version ranges.
    """

    def __init__(self, guard_s: float) -> None:
        self.tick_s = guard_s / 3
        self.limit_s = guard_s / 2
        self.stalled_at = 0.0
        self._due = 0.0
        self._handle: Any = None

    def start(self, loop: Any) -> None:
        self._due = loop.time() + self.tick_s
        self._handle = loop.call_at(self._due, self._tick, loop)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()

    def _tick(self, loop: Any) -> None:
        if loop.time() - self._due > self.limit_s:
            self.stalled_at = time.time()
        self.start(loop)
