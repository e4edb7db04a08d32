"""The smallest request of each dialect, for tests that hold for all of them: one list, so that a dialect joins them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_USER = {"role": "user", "content": "hi"}


@dataclass(frozen=True)
class Route:
    """A path that answers with a reply of the model, and a body for it."""

    path: str
    body: dict[str, Any]
    stream_path: str | None = None
    """Where the path says whether to stream; else the body does, with ``stream``."""

    def url(self, stream: bool) -> str:
        return self.stream_path if stream and self.stream_path else self.path

    def request(self, stream: bool) -> dict[str, Any]:
        return dict(self.body) if self.stream_path else {**self.body, "stream": stream}


ROUTES: dict[str, Route] = {
    "chat": Route("/v1/chat/completions", {"model": "m", "messages": [_USER]}),
    "completions": Route("/v1/completions", {"model": "m", "prompt": "hi"}),
    "responses": Route("/v1/responses", {"model": "m", "input": "hi"}),
    "messages": Route("/v1/messages", {"model": "m", "max_tokens": 16, "messages": [_USER]}),
    "gemini": Route(
        "/v1beta/models/m:generateContent",
        {"contents": [{"role": "user", "parts": [{"text": "hi"}]}]},
        "/v1beta/models/m:streamGenerateContent?alt=sse",
    ),
}
