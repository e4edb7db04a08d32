"""Errors in the shape of the Messages API. Pure.

Source of the format: Anthropic's API reference, "Errors". An overlong prompt has a wording of its own there, by which
harnesses know that they have to compact, so the engine's is translated to it.
"""

from __future__ import annotations

import re
from typing import Any

from proxy.dialects.base import Failure

_KINDS = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}
_WINDOW = re.compile(r"maximum context length (?:is |of |\()(\d+)")
_LENGTH = re.compile(
    r"contains (?P<least>at least )?(\d+) input tokens|Input length \((\d+)\)|resulted in (\d+) tokens"
)
"""vLLM 0.32, from the tokenizer and from the engine; OpenAI."""


def error(failure: Failure) -> dict[str, Any]:
    """The body of an error reply, and the data of an ``error`` event."""
    message = failure.message
    if failure.status == 400:
        message = _overlong(message) or message
    return {"type": "error", "error": {"type": error_kind(failure.status), "message": message}}


def error_kind(status: int) -> str:
    """Anthropic's name for the kind of error that a status stands for."""
    return _KINDS.get(status, "invalid_request_error" if status < 500 else "api_error")


def _overlong(message: str) -> str | None:
    """Anthropic's message where ``message`` says that the prompt exceeds the window; else None."""
    window = _WINDOW.search(message)
    if window is None:
        return None
    limit = int(window.group(1))
    length = _LENGTH.search(message)
    if length is None or length["least"]:  # the engine stopped counting once it was too long
        return f"prompt is too long: at least {limit + 1} tokens > {limit} maximum"
    count = int(next(group for group in length.groups()[1:] if group))
    return f"prompt is too long: {count} tokens > {limit} maximum"
