"""The operator's two keys: configured, or on loopback made once and kept in a file that only its owner can read."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path

from pydantic import SecretStr

from proxy.errors import KeysUnwritable, ProxyError, UnsafeBind
from proxy.settings import Settings


def with_keys(settings: Settings, folder: Path) -> tuple[Settings, Path | None]:
    """Settings in which both keys are set, and the file that holds generated ones.

    ``folder``: where ``keys.json`` goes by default. Raises UnsafeBind, KeysUnwritable, ProxyError (equal keys).
    """
    settings, path = _with_keys(settings, folder)
    if settings.admin_key == settings.runner_key:
        raise ProxyError(
            "the admin key and the runner key are the same, which gives every runner all rights: set two"
        )
    return settings, path


def _with_keys(settings: Settings, folder: Path) -> tuple[Settings, Path | None]:
    if settings.admin_key and settings.runner_key:
        return settings, None
    if not settings.is_loopback:
        raise UnsafeBind(
            f"listening on {settings.host} needs keys: set SINGLETREE_ADMIN_KEY and SINGLETREE_RUNNER_KEY, "
            "or listen on 127.0.0.1"
        )
    path = settings.keys_file or folder / "keys.json"
    stored = _read_or_make(path)
    return (
        settings.model_copy(
            update={
                "admin_key": settings.admin_key or SecretStr(stored["admin"]),
                "runner_key": settings.runner_key or SecretStr(stored["runner"]),
            }
        ),
        path,
    )


def _read_or_make(path: Path) -> dict[str, str]:
    try:
        if path.exists():
            stored = json.loads(path.read_text())
            if isinstance(stored, dict) and stored.get("admin") and stored.get("runner"):
                return stored
            raise KeysUnwritable(f"{path} holds no keys: delete it, and new ones are made")
        made = {scope: f"st-{scope}-{secrets.token_urlsafe(32)}" for scope in ("admin", "runner")}
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            json.dump(made, file)
        return made
    except (OSError, ValueError) as error:
        raise KeysUnwritable(
            f"{path} cannot be used for the keys ({error}): choose another with --keys-file"
        ) from error
