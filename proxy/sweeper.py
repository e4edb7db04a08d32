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
    """Until cancelled. Several proxies may sweep one database: the rows' locks keep them apart.

    Runners that could not reach the proxy while it was down, or while the machine slept, are given the time to send
    their next heartbeat before one is found missing.
    """
    last, patient_until = time.time(), time.time() + settings.heartbeat_timeout_s
    while True:
        await asyncio.sleep(settings.sweep_s)
        now = time.time()
        if now - last > settings.sweep_s + settings.heartbeat_timeout_s / 2:
            patient_until = now + settings.heartbeat_timeout_s
        last = now
        try:
            lost = []
            if now >= patient_until:
                lost = await asyncio.to_thread(abandon_lost, database, settings.heartbeat_timeout_s, now)
            settled = await asyncio.to_thread(settle_due, database, now)
        except SpanlogError as error:
            log.warning("sweep failed", error=str(error))
            continue
        except Exception:  # without the sweeper no deadline is ever kept
            log.exception("a sweep failed")
            continue
        if lost:
            log.info("rollouts abandoned: no heartbeat", rollouts=lost)
        if settled:
            log.info("groups settled at their deadline", groups=settled)
        if lost or settled:
            keys.forget()


def abandon_lost(database: Database, heartbeat_timeout_s: float, now: float) -> list[str]:
    """Abandons rollouts without a heartbeat; returns their ids. Looks first, without the write lock: as a rule there is
    nothing to do. A transaction apart from ``settle_due``: together they would lock rollouts out of the writer's order."""
    overdue = select(Rollout.id).where(
        Rollout.state == RolloutState.RUNNING, Rollout.heartbeat_at < now - heartbeat_timeout_s
    )
    with database.read() as conn:
        if conn.execute(overdue.limit(1)).first() is None:
            return []
    with database.begin() as conn:
        return rollouts.abandon_lost(conn, heartbeat_timeout_s, now)


def settle_due(database: Database, now: float) -> list[str]:
    """Settles groups whose deadline has passed; returns their ids."""
    due = select(Group.id).where(Group.state == GroupState.OPEN, Group.deadline_at <= now)
    with database.read() as conn:
        if conn.execute(due.limit(1)).first() is None:
            return []
    with database.begin() as conn:
        return groups.settle_due(conn, None, now)
