"""A proxy's control plane as the command line uses it: with the admin key, one call at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

KEY_VARIABLE = "SINGLETREE_KEY"
DEFAULT_KEYS_FILE = Path("keys.json")
TIMEOUT_S = 120.0
"""Registering an engine checks it, which may wait for a reply that is being generated."""


class AdminCallFailed(Exception):
    """The call lacks something, or the proxy does not answer or said no; the message has the remedy."""

    exit_code = 8


def find_admin_key(key: str | None, keys_file: Path | None) -> str:
    """``key``, else $SINGLETREE_KEY, else ``admin`` in the keys file that `singletree serve` wrote: the one given, or
    keys.json in this folder.

    Raises ``AdminCallFailed`` if there is none.
    """
    if found := key or os.environ.get(KEY_VARIABLE):
        return found
    if keys_file is None and DEFAULT_KEYS_FILE.is_file():
        keys_file = DEFAULT_KEYS_FILE
    if keys_file is None:
        raise AdminCallFailed(f"the admin key is needed: give --key, --keys-file or ${KEY_VARIABLE}")
    try:
        return json.loads(keys_file.read_text())["admin"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AdminCallFailed(
            f"no admin key in {keys_file} ({error}); `singletree serve` writes it"
        ) from error


def put(proxy_url: str, path: str, body: Mapping[str, Any], key: str) -> dict[str, Any]:
    """``PUT`` of a resource, idempotent by its path; returns what the proxy made of it. Raises ``AdminCallFailed``."""
    try:
        reply = httpx.put(
            f"{proxy_url.rstrip('/')}{path}",
            json=dict(body),
            headers={"Authorization": f"Bearer {key}"},
            timeout=TIMEOUT_S,
            trust_env=False,
        )
    except (httpx.TransportError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise AdminCallFailed(
            f"no proxy at {proxy_url} ({reason}); start it with `singletree serve`"
        ) from error
    if not reply.is_success:
        raise AdminCallFailed(f"the proxy refused: {_message(reply)}")
    return reply.json()


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{reply.status_code} {reply.text[:200]}"
