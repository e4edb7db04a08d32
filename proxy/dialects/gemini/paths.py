"""Which paths are Gemini's, and what they say: model and method are not in the body as they are elsewhere."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from urllib.parse import parse_qs

from proxy.dialects.base import Target

_METHODS = frozenset({"generateContent", "streamGenerateContent", "countTokens"})
_PATH = re.compile(
    r"/(?:v1beta|v1)/(?P<collection>models|tunedModels)(?:/(?P<model>.+?))?(?::(?P<method>[A-Za-z]+))?"
)


@dataclass(frozen=True, slots=True)
class GeminiPath:
    """A path of Gemini's API, taken apart."""

    model: str | None
    """As the caller calls it, without the collection's name."""
    method: str | None
    """None: the path names a model or the list of them."""
    sse: bool
    """``alt=sse`` was given; a stream is one JSON array without it."""
    key: str | None = field(repr=False)
    """The query parameter of that name. A secret: it goes into no log, message or span."""
    known: bool
    """False for paths under ``/v1beta/`` that this proxy has no use for."""

    def target(self, target: Target) -> Target:
        """``target`` with what the path says."""
        stream = self.method == "streamGenerateContent"
        return replace(target, model=self.model, stream=stream, array=stream and not self.sse)


def read(path: str, query: bytes) -> GeminiPath | None:
    """None where the path is another API's. ``path`` is decoded, ``query`` is as it came."""
    match = _PATH.fullmatch(path)
    if not path.startswith("/v1beta/") and not (match and match["method"] in _METHODS):
        return None
    asked = parse_qs(query.decode("latin-1"))
    return GeminiPath(
        model=match["model"] if match else None,
        method=match["method"] if match else None,
        sse=asked.get("alt") == ["sse"],
        key=asked["key"][0] if asked.get("key") else None,
        known=match is not None
        and (match["method"] is None or (match["method"] in _METHODS and bool(match["model"]))),
    )
