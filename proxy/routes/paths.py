"""Which path of the data plane means what: the one table from paths to dialects. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from proxy.auth import Headers, find_secret
from proxy.dialects import chat, completions, gemini, messages, responses
from proxy.dialects.base import Dialect
from proxy.dialects.gemini import paths as gemini_paths
from proxy.dialects.gemini.paths import GeminiPath

GENERATING: dict[str, Dialect] = {
    "/v1/chat/completions": chat,
    "/v1/completions": completions,
    "/v1/messages": messages,
    "/v1/responses": responses,
}
"""POST paths that answer with a reply of the model. Gemini's name model and method: see ``gemini.paths``."""
COUNT_TOKENS = "/v1/messages/count_tokens"
MODELS = "/v1/models"
RESPONSES = "/v1/responses/"
"""Behind it: the id of a stored response."""
GEMINI_SERVED = "/v1beta/models/{model}:generateContent, :streamGenerateContent, :countTokens"


class Kind(Enum):
    """What is asked for."""

    GENERATE = "generate"
    COUNT = "count"
    MODELS = "models"
    STORED = "stored"
    """A response that was given before."""
    UNKNOWN = "unknown"


METHODS = {Kind.GENERATE: "POST", Kind.COUNT: "POST", Kind.MODELS: "GET", Kind.STORED: "GET"}


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
    if path.startswith(RESPONSES):
        return Route(Kind.STORED, responses, path, secret)
    if path == COUNT_TOKENS:
        return Route(Kind.COUNT, messages, path, secret)
    dialect = _dialect_of(headers)
    if path == MODELS or path.startswith(f"{MODELS}/"):
        return Route(Kind.MODELS, dialect, path, secret, path.removeprefix(MODELS).lstrip("/") or None)
    return Route(Kind.UNKNOWN, dialect, path, secret)


def normal_path(path: str) -> str:
    """Some clients add ``/v1`` to their base URL and some want it there: both kinds of URL work with both."""
    while path.startswith(("/v1/v1/", "/v1/v1beta/")):
        path = path[3:]
    return f"/v1{path}" if _is_served(f"/v1{path}") else path


def _dialect_of(headers: Headers) -> Dialect:
    """Whose client it is, where several APIs share a path: Google's newer clients list models at ``/v1/models``."""
    names = {name for name, _ in headers}
    if b"anthropic-version" in names:
        return messages
    return gemini if names & {b"x-goog-api-key", b"x-goog-api-client"} else chat


def served(route: Route) -> str:
    """The paths to name where one is unknown."""
    if route.google:
        return f"/v1beta/models, {GEMINI_SERVED}"
    return ", ".join([*GENERATING, COUNT_TOKENS, MODELS])


def _is_served(path: str) -> bool:
    return path in GENERATING or path in (COUNT_TOKENS, MODELS) or path.startswith((f"{MODELS}/", RESPONSES))


def _google_kind(google: GeminiPath) -> Kind:
    if not google.known:
        return Kind.UNKNOWN
    if google.method is None:
        return Kind.MODELS
    return Kind.COUNT if google.method == "countTokens" else Kind.GENERATE
