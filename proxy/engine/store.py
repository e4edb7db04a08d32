"""The engines' rows: reading them with their policy, and changing them only if nobody else has meanwhile.

The trainer swaps, operators drain, several proxies watch: every change here names the state and version that it was
decided on, and does nothing if they are no longer true.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select, update

from proxy.engine.pool import EngineView
from spanlog.locks import lock_engines
from spanlog.models import Engine, Policy


def read_engines(conn: Connection, engine_id: str | None = None) -> list[EngineView]:
    """All engines (or the one named) with their policies' current version, from one snapshot."""
    query = select(
        Engine.id,
        Engine.policy_id,
        Policy.version.label("policy_version"),
        Engine.base_url,
        Engine.kind,
        Engine.state,
        Engine.version,
        Engine.capabilities,
        Engine.seen_at,
    ).join(Policy, Policy.id == Engine.policy_id)
    if engine_id is not None:
        query = query.where(Engine.id == engine_id)
    return [EngineView(**row) for row in conn.execute(query.order_by(Engine.id)).mappings()]


def change_engine(conn: Connection, seen: EngineView, values: dict[str, Any]) -> bool:
    """Sets ``values`` if state and version are still those ``seen``. Returns whether they were."""
    result = conn.execute(
        update(Engine)
        .where(
            Engine.id == seen.id,
            Engine.state == seen.state,
            Engine.version.is_not_distinct_from(seen.version),
        )
        .values(**values)
    )
    return result.rowcount == 1


def touch_engines(conn: Connection, engine_ids: list[str], now: float) -> None:
    """Notes that these engines were healthy at ``now``."""
    lock_engines(conn, engine_ids)  # an update of several rows locks them in an order of its own
    conn.execute(update(Engine).where(Engine.id.in_(engine_ids)).values(seen_at=now))
