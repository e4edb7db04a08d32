"""What a dialect is: how one family of agents asks for a model's reply, and how the reply is written for it.

Each dialect decodes a request to the hub (a chat-completions request, see ``proxy.hub``) and encodes replies from the
hub (chat completions and their chunks as the engine sends them). Everything behind the hub is written once. Pure: no
dialect does I/O; a stored response that a request names is looked up by the route and handed in.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol


class BadRequest(Exception):
    """The body is no request of the dialect. ``param`` names the field at fault."""

    def __init__(
        self, message: str, param: str | None = None, *, status: int = 400, code: str = "invalid_request"
    ) -> None:
        super().__init__(message)
        self.param = param
        self.status = status
        self.code = code


@dataclass(frozen=True, slots=True)
class Failure:
    """What a caller is told instead of a reply; each dialect has a shape of its own for it."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    engine_error: dict[str, Any] | None = None
    """The engine's own error document, ``{"error": {...}}``, where it sent one."""


@dataclass(frozen=True, slots=True)
class Target:
    """What a request says beside its body."""

    span_id: str
    """Of the span that will hold the call: ids of replies are made from it, so that a later request can name it."""
    created_at: float
    """Unix seconds."""
    model: str | None = None
    """From the path, where the dialect has it there (Gemini)."""
    stream: bool = False
    """Whether the path asks for a stream (Gemini)."""
    array: bool = False
    """Whether that stream is one JSON array instead of server-sent events (Gemini without ``alt=sse``)."""


class Call(Protocol):
    """One request, decoded, and the state of writing its reply.

    ``whole`` is called once for a reply that is not streamed. For a stream, ``chunk`` is called for each chunk in order
    and ``end`` after the last; if something fails in between, ``error_event`` ends the stream instead. What they return
    is sent as it is: bodies, or server-sent events with their framing. A call whose streams are no server-sent events
    has their content type as ``stream_type``.
    """

    hub: dict[str, Any]
    """The request as a chat completion (for text completions: as that route has it), for the engine. The caller of
    ``decode`` owns it. It holds ``stream`` and the sampling parameters that the agent gave, translated."""
    stream: bool
    ignored: list[str]
    """Names of request fields that have no meaning here and were dropped, hosted tools as ``tools.TYPE``; recorded."""
    previous: str | None
    """Id of the span whose history this request continues without repeating it (Responses); else None."""
    untrainable: str | None
    """A reason of the dialect's own why the reply must not be trained on; the sampling contract has the common ones."""

    def resume(self, messages: list[dict[str, Any]]) -> None:
        """Puts the history of ``previous``, its reply included and in hub terms, in front of the messages."""
        ...

    def restart(self) -> None:
        """Forgets what was written of a reply that broke off before any of it was sent: it is asked for again."""
        ...

    def to_hub(self, document: dict[str, Any]) -> dict[str, Any]:
        """A reply or chunk of the engine's route as a chat completion or its chunk; may be the same object."""
        ...

    def whole(self, reply: dict[str, Any]) -> bytes: ...

    def chunk(self, chunk: dict[str, Any]) -> bytes: ...

    def end(self) -> bytes: ...

    def error_event(self, failure: Failure) -> bytes: ...


class Dialect(Protocol):
    """A module of this package, or an object in it."""

    name: str
    """As recorded in ``spans.dialect``."""
    engine_path: str
    """The engine's route that serves it: ``/v1/chat/completions``, or ``/v1/completions`` for text completions."""

    def decode(self, raw: bytes, target: Target) -> Call:
        """Raises BadRequest."""
        ...

    def error(self, failure: Failure) -> dict[str, Any]:
        """The body of an error reply."""
        ...
