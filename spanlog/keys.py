"""Keys: who may do what. The secret is shown once; the database keeps its SHA-256.

A plain digest suffices for secrets of 256 random bits: there is nothing to guess, so no salt and no slow hash.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from dataclasses import dataclass
from enum import StrEnum

from sqlalchemy import Connection, select, update

from spanlog.errors import Conflict
from spanlog.models import Key, Rollout
from spanlog.upsert import insert_or_ignore


class Scope(StrEnum):
    AGENT = "agent"  # the data plane of one rollout, nothing else
    RUNNER = "runner"  # groups, rollouts, rewards, reading
    ADMIN = "admin"  # all


@dataclass(frozen=True)
class KeyRow:
    """A valid key and, for an agent's, its rollout as it is now."""

    hash: str
    scope: str
    rollout_id: str | None
    label: str | None
    created_at: float
    rollout_state: str | None
    policy_id: str | None
    purpose: str | None


def hash_secret(secret: str) -> str:
    """SHA-256 of the secret, hex."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def mint(
    conn: Connection,
    scope: str,
    *,
    rollout_id: str | None = None,
    label: str | None = None,
    secret: str | None = None,
    now: float | None = None,
) -> str:
    """Store a key and return its secret. ``secret``: one that the operator configured, stored once however often.

    Raises Conflict if that secret is already a key of another scope, or revoked; ValueError for an unknown scope.
    """
    scope = Scope(scope)
    if secret is None:
        secret = f"st-{scope}-{secrets.token_urlsafe(32)}"
    row = {
        "hash": hash_secret(secret),
        "scope": scope,
        "rollout_id": rollout_id,
        "label": label,
        "created_at": time.time() if now is None else now,
        "revoked_at": None,
    }
    if not insert_or_ignore(conn, Key, row):
        found = conn.execute(select(Key.scope, Key.revoked_at).where(Key.hash == row["hash"])).one()
        if found.scope != scope:
            raise Conflict(
                f"the configured {scope} key is already the {found.scope} key: use two different secrets"
            )
        if found.revoked_at is not None:
            raise Conflict(f"the configured {scope} key was revoked: use another secret")
    return secret


def find(conn: Connection, hash: str) -> KeyRow | None:
    """The key with this digest; null if there is none or it was revoked. One query."""
    query = (
        select(
            Key.hash,
            Key.scope,
            Key.rollout_id,
            Key.label,
            Key.created_at,
            Rollout.state.label("rollout_state"),
            Rollout.policy_id,
            Rollout.purpose,
        )
        .outerjoin(Rollout, Rollout.id == Key.rollout_id)
        .where(Key.hash == hash, Key.revoked_at.is_(None))
    )
    row = conn.execute(query).one_or_none()
    return None if row is None else KeyRow(**row._mapping)


def revoke_for_rollout(conn: Connection, rollout_id: str, now: float | None = None) -> int:
    """Revoke the rollout's keys; returns how many."""
    query = update(Key).where(Key.rollout_id == rollout_id, Key.revoked_at.is_(None))
    return conn.execute(query.values(revoked_at=time.time() if now is None else now)).rowcount
