"""What time alone brings about: rollouts whose runner fell silent, groups whose deadline has passed."""

from __future__ import annotations

import asyncio
import time

import structlog
from sqlalchemy import select

from proxy.auth import KeyRing
from proxy.settings import Settings
from spanlog import groups, rollouts
from spanlog.database import Database
from spanlog.errors import SpanlogError
from spanlog.models import Group, Rollout
from spanlog.states import GroupState, RolloutState

log = structlog.get_logger("proxy.sweeper")


async def run_sweeper(database: Database, keys: KeyRing, settings: Settings) -> None:
    """Until cancelled. Several proxies may sweep one database: the rows' locks keep them apart."""
    while True:
        await asyncio.sleep(settings.sweep_s)
        try:
            lost, settled = await asyncio.to_thread(
                sweep, database, settings.heartbeat_timeout_s, time.time()
            )
        except SpanlogError as error:
            log.warning("sweep failed", error=str(error))
            continue
        if lost:
            log.info("rollouts abandoned: no heartbeat", rollouts=lost)
        if settled:
            log.info("groups settled at their deadline", groups=settled)
        if lost or settled:
            keys.forget()


def sweep(database: Database, heartbeat_timeout_s: float, now: float) -> tuple[list[str], list[str]]:
    """One round. Returns the rollouts abandoned and the groups settled.

    Looks first, without the write lock: as a rule there is nothing to do.
    """
    overdue = select(Rollout.id).where(
        Rollout.state == RolloutState.RUNNING, Rollout.heartbeat_at < now - heartbeat_timeout_s
    )
    due = select(Group.id).where(Group.state == GroupState.OPEN, Group.deadline_at <= now)
    with database.read() as conn:
        if conn.execute(overdue.limit(1)).first() is None and conn.execute(due.limit(1)).first() is None:
            return [], []
    with database.begin() as conn:
        return rollouts.abandon_lost(conn, heartbeat_timeout_s, now), groups.settle_due(conn, None, now)
