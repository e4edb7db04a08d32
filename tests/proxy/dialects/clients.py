"""Google's own client, pointed at a proxy under test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from google import genai
from google.genai import types

from tests.proxy.conftest import Served


@contextmanager
def google_client(proxy: Served, key: str) -> Iterator[genai.Client]:
    """Retries nothing: a test must see the first answer."""
    with httpx.Client(trust_env=False, timeout=60) as http:
        options = types.HttpOptions(
            base_url=proxy.url,
            httpx_client=http,
            retry_options=types.HttpRetryOptions(attempts=1),
        )
        client = genai.Client(api_key=key, http_options=options)
        try:
            yield client
        finally:
            client.close()
