"""The environment that a harness's process gets.

Everything of the runner's that could open the control plane, or send a model call past the proxy, is left out: an
agent can read its environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from harness_adapters.protocol import Endpoint

WITHHELD_PREFIXES = (
    "SINGLETREE_",
    "OPENAI_",
    "ANTHROPIC_",
    "GEMINI_",
    "GOOGLE_API",
    "AZURE_OPENAI_",
    "LITELLM_",
)


def clean_environment(source: Mapping[str, str] | None = None) -> dict[str, str]:
    """The runner's environment (or ``source``) without keys and endpoints."""
    source = os.environ if source is None else source
    return {name: value for name, value in source.items() if not name.startswith(WITHHELD_PREFIXES)}


def openai_environment(endpoint: Endpoint) -> dict[str, str]:
    """What OpenAI clients (and litellm) read."""
    return {
        "OPENAI_BASE_URL": endpoint.base_url,
        "OPENAI_API_BASE": endpoint.base_url,
        "OPENAI_API_KEY": endpoint.api_key,
        "OPENAI_MODEL": endpoint.model,
    }
