"""Tells a proxy about an engine, over the control plane."""

from __future__ import annotations

import json
import os
from pathlib import Path

import httpx

from singletree.engine.errors import RegistrationFailed

KEY_VARIABLE = "SINGLETREE_KEY"


def find_admin_key(key: str | None, keys_file: Path | None) -> str:
    """``key``, else $SINGLETREE_KEY, else ``admin`` in the keys file that `singletree serve` wrote.

    Raises ``RegistrationFailed`` if there is none.
    """
    if found := key or os.environ.get(KEY_VARIABLE):
        return found
    if keys_file is None:
        raise RegistrationFailed(
            f"registering needs the admin key: give --key, --keys-file or ${KEY_VARIABLE}"
        )
    try:
        return json.loads(keys_file.read_text())["admin"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RegistrationFailed(
            f"no admin key in {keys_file} ({error}); `singletree serve` writes it"
        ) from error


def register_engine(proxy_url: str, *, engine_id: str, policy: str, base_url: str, key: str) -> str:
    """Registers a vLLM engine (idempotent by id) and returns the state that the proxy gave it.

    Raises ``RegistrationFailed`` with the proxy's own words.
    """
    url = f"{proxy_url.rstrip('/')}/api/engines/{engine_id}"
    body = {"policy": policy, "base_url": base_url, "kind": "vllm"}
    try:
        reply = httpx.put(
            url, json=body, headers={"Authorization": f"Bearer {key}"}, timeout=120.0, trust_env=False
        )
    except (httpx.TransportError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
        reason = str(error) or type(error).__name__
        raise RegistrationFailed(
            f"no proxy at {proxy_url} ({reason}); start it with `singletree serve`"
        ) from error
    if reply.status_code >= 400:
        raise RegistrationFailed(f"the proxy refused the engine: {_message(reply)}")
    return str(reply.json().get("state"))


def _message(reply: httpx.Response) -> str:
    try:
        return str(reply.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"{reply.status_code} {reply.text[:200]}"
