"""The Responses API, as Codex, the OpenAI Agents SDK and others speak it. Pure.

``request`` reads the fields, ``tools`` and ``items`` what they hold; ``output`` writes the reply, ``stream`` its events,
``failures`` its errors. docs/dialects/responses.md says what is translated, what is dropped and what is refused.
"""

from __future__ import annotations

import orjson

from proxy.dialects.base import BadRequest, Target
from proxy.dialects.responses.call import ResponsesCall
from proxy.dialects.responses.failures import error
from proxy.dialects.responses.request import not_found, read

__all__ = ["ResponsesCall", "decode", "engine_path", "error", "name", "not_found"]

name = "responses"
engine_path = "/v1/chat/completions"


def decode(raw: bytes, target: Target) -> ResponsesCall:
    """See ``base.Dialect``. Raises BadRequest."""
    try:
        return ResponsesCall(read(raw), target)
    except orjson.JSONEncodeError:  # JSON is read to a greater depth than it is written
        raise BadRequest("The request is nested too deeply.") from None
