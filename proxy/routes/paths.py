"""Which path of the data plane means what: the one table from paths to dialects. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proxy.auth import Headers, find_secret
from proxy.dialects import chat, completions, gemini, messages
from proxy.dialects.base import Dialect
from proxy.dialects.gemini import paths as gemini_paths
from proxy.dialects.gemini.paths import GeminiPath

GENERATING: dict[str, Dialect] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/messages": messages,
}
"""POST paths that answer with a reply of the model. Gemini's name model and method: see ``gemini.paths``."""
COUNT_TOKENS = "/v1/messages/count_tokens"
MODELS = "/v1/models"
GEMINI_SERVED = "/v1beta/models/{model}:generateContent, :streamGenerateContent, :countTokens"


class Kind(Enum):
    """What is asked for."""

    GENERATE = "generate"
    COUNT = "count"
    MODELS = "models"
    UNKNOWN = "unknown"


METHODS = {Kind.GENERATE: "POST", Kind.COUNT: "POST", Kind.MODELS: "GET"}


@dataclass(frozen=True, slots=True)
class Route:
    """A request's path, understood."""

    kind: Kind
    dialect: Dialect
    """Whose replies and errors the caller understands, also where the path is unknown."""
    path: str
    """Without the secret, and with one ``/v1``."""
    secret: str | None
    model: str | None = None
    """Models: the one asked for; null for the list."""
    google: GeminiPath | None = None


def is_data_plane(path: str) -> bool:
    return path.startswith(("/v1/", "/v1beta/", "/r/")) or normal_path(path) != path


def find_route(path: str, query: bytes, headers: Headers) -> Route:
    secret, path = find_secret(path, headers)
    path = normal_path(path)
    if google := gemini_paths.read(path, query):
        return Route(_google_kind(google), gemini, path, secret or google.key, google.model, google)
    if generating := GENERATING.get(path):
        return Route(Kind.GENERATE, generating, path, secret)
    anthropic = any(name == b"anthropic-version" for name, _ in headers)
    if path == COUNT_TOKENS:
        return Route(Kind.COUNT, messages, path, secret)
    dialect: Dialect = messages if anthropic else chat
    if path == MODELS or path.startswith(f"{MODELS}/"):
        return Route(Kind.MODELS, dialect, path, secret, path.removeprefix(MODELS).lstrip("/") or None)
    return Route(Kind.UNKNOWN, dialect, path, secret)


def normal_path(path: str) -> str:
    """Some clients add ``/v1`` to their base URL and some want it there: both kinds of URL work with both."""
    while path.startswith("/v1/v1/"):
        path = path[3:]
    return f"/v1{path}" if _is_served(f"/v1{path}") else path


def served(route: Route) -> str:
    """The paths to name where one is unknown."""
    if route.google:
        return f"/v1beta/models, {GEMINI_SERVED}"
    return ", ".join([*GENERATING, COUNT_TOKENS, MODELS])


def _is_served(path: str) -> bool:
    return path in GENERATING or path in (COUNT_TOKENS, MODELS) or path.startswith(f"{MODELS}/")


def _google_kind(google: GeminiPath) -> Kind:
    if not google.known:
        return Kind.UNKNOWN
    if google.method is None:
        return Kind.MODELS
    return Kind.COUNT if google.method == "countTokens" else Kind.GENERATE
