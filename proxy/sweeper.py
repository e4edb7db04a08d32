"""What time alone brings about: rollouts whose runner fell silent, groups whose deadline has passed."""

from __future__ import annotations

import asyncio
import time

import structlog
from sqlalchemy import Select, select

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
    listening = Listening(settings.heartbeat_timeout_s, settings.sweep_s)
    while True:
        await asyncio.sleep(settings.sweep_s)
        now = time.time()
        try:
            lost, settled = await asyncio.to_thread(sweep, database, listening.timeout_s(now), now)
        except SpanlogError as error:
            log.warning("sweep failed", error=str(error))
            continue
        except Exception:  # whatever it is, deadlines must be kept again
            log.exception("sweep failed")
            continue
        listening.last_round = now
        if lost:
            log.info("rollouts abandoned: no heartbeat", rollouts=lost)
        if settled:
            log.info("groups settled at their deadline", groups=settled)
        if lost or settled:
            keys.forget()


class Listening:
    """Whether a runner's silence says anything. While this process was stopped, this machine slept or the database was
    away, nobody's heartbeat was heard: afterwards every runner gets the whole time-out once more."""

    def __init__(self, heartbeat_timeout_s: float, sweep_s: float) -> None:
        self.last_round = 0.0
        """Wall time of the last round that worked; a round at start-up is late, too."""
        self._timeout_s = heartbeat_timeout_s
        self._sweep_s = sweep_s
        self._spared_until = 0.0

    def timeout_s(self, now: float) -> float | None:
        """The time-out that the round at ``now`` goes by; null if silence proves nothing yet."""
        if now - self.last_round > self._sweep_s + self._timeout_s / 2:
            self._spared_until = now + self._timeout_s
        return self._timeout_s if now >= self._spared_until else None


def sweep(database: Database, heartbeat_timeout_s: float | None, now: float) -> tuple[list[str], list[str]]:
    """One round. Returns the rollouts abandoned (none without a time-out) and the groups settled.

    Looks first, without the write lock: as a rule there is nothing to do. Two transactions: each locks groups before
    rollouts, and one that did both would lock groups after rollouts.
    """
    lost: list[str] = []
    if heartbeat_timeout_s is not None:
        silent = select(Rollout.id).where(
            Rollout.state == RolloutState.RUNNING, Rollout.heartbeat_at < now - heartbeat_timeout_s
        )
        if _any(database, silent):
            with database.begin() as conn:
                lost = rollouts.abandon_lost(conn, heartbeat_timeout_s, now)
    if not _any(database, select(Group.id).where(Group.state == GroupState.OPEN, Group.deadline_at <= now)):
        return lost, []
    with database.begin() as conn:
        return lost, groups.settle_due(conn, None, now)


def _any(database: Database, query: Select[str]) -> bool:
    with database.read() as conn:
        return conn.execute(query.limit(1)).first() is not None
