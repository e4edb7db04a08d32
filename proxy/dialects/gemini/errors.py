"""Google's shape of errors: ``{"error": {"code", "message", "status"}}``, with the names of ``google.rpc.Code``."""

from __future__ import annotations

import re
from typing import Any

from proxy.dialects.base import Failure

_STATUS = {
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    408: "DEADLINE_EXCEEDED",
    409: "ABORTED",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_OVERFLOWS = [
    re.compile(r"maximum context length is (?P<limit>\d+) tokens.* resulted in (?P<count>\d+) tokens", re.S),
    re.compile(r"maximum context length is (?P<limit>\d+) tokens.* (?P<count>\d+) input tokens", re.S),
    re.compile(r"Input length \((?P<count>\d+)\) exceeds model's maximum context length \((?P<limit>\d+)\)"),
    re.compile(
        r"maximum context length is (?P<limit>\d+) tokens.* contains (?P<characters>\d+) characters", re.S
    ),
]
"""How the proxy, then how vLLM 0.32 says that a prompt does not fit; the last where it did not count tokens (``renderers/params.py``)."""


def error(failure: Failure) -> dict[str, Any]:
    """The body of an error reply, and of an event that ends a stream."""
    status = _STATUS.get(failure.status, "INVALID_ARGUMENT" if failure.status < 500 else "INTERNAL")
    return {"error": {"code": failure.status, "message": _message(failure.message), "status": status}}


def _message(message: str) -> str:
    """An overlong prompt is named in Google's words, which agents look for before they shorten their history."""
    for pattern in _OVERFLOWS:
        if found := pattern.search(message):
            numbers = found.groupdict()
            count = f" ({numbers['count']})" if numbers.get("count") else ""
            limit = numbers["limit"]
            return f"The input token count{count} exceeds the maximum number of tokens allowed ({limit})."
    return message
