"""Errors in the shape of the Responses API. Pure.

Source of the format: OpenAI's API reference, "Error codes" and "Streaming events". An overlong prompt has a code of its
own there, by which harnesses know that they have to compact, so the engine's wording is translated to it.
"""

from __future__ import annotations

import re
from typing import Any

from proxy.dialects.base import Failure
from proxy.dialects.chat import error_kind

OVERFLOW = "context_length_exceeded"
_OVERFLOW = re.compile(r"maximum context length|max_model_len|context window")
"""vLLM 0.32, from the renderer and from the engine; OpenAI."""


def error(failure: Failure) -> dict[str, Any]:
    """The body of an error reply. The engine's message is kept, its names for kinds of errors are not OpenAI's."""
    code = _code(failure)
    return {
        "error": {
            "message": failure.message,
            "type": error_kind(failure.status),
            "param": "input" if code == OVERFLOW else failure.param,
            "code": code,
        }
    }


def response_error(failure: Failure) -> dict[str, Any]:
    """``response.error`` of a response that failed after its stream began."""
    default = "server_error" if failure.status >= 500 else "invalid_prompt"
    return {"code": _code(failure) or default, "message": failure.message}


def _code(failure: Failure) -> str | None:
    if failure.status == 400 and _OVERFLOW.search(failure.message):
        return OVERFLOW
    if failure.status == 429:
        return failure.code or "rate_limit_exceeded"
    return failure.code
