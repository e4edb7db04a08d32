"""The swap clock: which policy version sampled a token [I2]. Never a guess: what is not known is -1.

The trainer writes ``begin_at`` once the engine has acknowledged the pause, and ``end_at`` before it resumes. So a token
received until ``end_at`` is of the old weights. One received just after may have waited in a buffer since before the
pause: within ``guard_s`` it carries the closed range of both. After that it is of the new weights.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sqlalchemy import Connection, Row, insert, select, update

from spanlog.arrays import Ints
from spanlog.errors import Conflict, NotFound
from spanlog.ids import new_id
from spanlog.locks import lock_engine
from spanlog.models import Engine, EngineSwap, Span
from spanlog.states import EngineState

UNKNOWN = -1
"""The version of a token whose weights are not known; its span is untrainable."""

VOIDED_REASON = "swap_voided"


class Swap(Protocol):
    """What the labels need of a row of ``engine_swaps``."""

    @property
    def old_version(self) -> int | None: ...
    @property
    def new_version(self) -> int: ...
    @property
    def begin_at(self) -> float: ...
    @property
    def end_at(self) -> float | None: ...
    @property
    def voided(self) -> bool: ...


def label_tokens(
    received_at: ArrayLike | None,
    started_at: float,
    ended_at: float,
    swaps: Sequence[Swap],
    current_version: int | None,
    guard_s: float,
    count: int | None = None,
) -> tuple[Ints, Ints]:
    """The closed range of versions that can have sampled each token [I2]. Pure.

    ``received_at``: float64 [n], Unix seconds; null for a reply that was not streamed: each of its ``count`` tokens gets
    the range over [``started_at``, ``ended_at``]. ``swaps``: those of the engine, in any order, from the last that began
    before ``started_at`` on. ``current_version``: the engine's. Returns (low, high), int32 [n]; both -1 where unknown.
    """
    ordered = sorted(swaps, key=lambda swap: swap.begin_at)
    if received_at is not None:
        return label_moments(np.asarray(received_at, np.float64), ordered, current_version, guard_s)
    moments = [started_at, ended_at]
    for swap in ordered:
        edges = (
            [swap.begin_at] if swap.end_at is None else [swap.begin_at, swap.end_at, swap.end_at + guard_s]
        )
        moments += [edge for edge in edges if started_at < edge < ended_at]
        moments += [float(np.nextafter(edge, np.inf)) for edge in edges if started_at <= edge < ended_at]
    low, high = label_moments(np.asarray(moments, np.float64), ordered, current_version, guard_s)
    known = bool((low >= 0).all())
    n = 1 if count is None else count
    return np.full(n, low.min() if known else UNKNOWN, np.int32), np.full(
        n, high.max() if known else UNKNOWN, np.int32
    )


def label_moments(
    moments: NDArray[np.float64], swaps: Sequence[Swap], current_version: int | None, guard_s: float
) -> tuple[Ints, Ints]:
    """The range of versions at each moment; ``swaps`` in order of ``begin_at``.

    A swap without an end has the engine paused with the old weights, as long as the next record says so too; after a
    restart it does not.
    """
    before_all = swaps[0].old_version if swaps else current_version
    version = np.full(moments.shape, number(before_all), np.int32)
    for index, swap in enumerate(swaps):
        later = swaps[index + 1].old_version if index + 1 < len(swaps) else current_version
        if swap.end_at is None:
            version[moments > swap.begin_at] = number(swap.old_version if later == swap.old_version else None)
        else:
            version[moments > swap.begin_at] = number(swap.old_version)
            version[moments > swap.end_at] = version_after(swap, later)
    low, high = version, version.copy()
    for swap in swaps:
        if swap.end_at is None:
            continue
        near = (moments > swap.end_at) & (moments <= swap.end_at + guard_s)
        low[near] = np.minimum(low[near], number(swap.old_version))
        high[near] = np.maximum(high[near], number(swap.old_version))
    high[low < 0] = UNKNOWN
    return low, high


def version_after(swap: Swap, later: int | None) -> int:
    """What runs after a finished swap. ``later``: what the next record says of the same time, null if nothing.

    A voided swap left weights that nobody knows, and two records that disagree prove neither.
    """
    disagree = later is not None and later != swap.new_version
    return UNKNOWN if swap.voided or disagree else swap.new_version


def number(version: int | None) -> int:
    """A version as a number: null is -1."""
    return UNKNOWN if version is None else version


def begin_swap(conn: Connection, engine_id: str, new_version: int, now: float | None = None) -> str:
    """Record that the engine acknowledged the pause; returns the swap's id. The engine's state becomes swapping.

    Raises NotFound.
    """
    engine = lock_engine(conn, engine_id)
    row = {
        "id": new_id("swp"),
        "engine_id": engine_id,
        "old_version": engine.version,
        "new_version": new_version,
        "begin_at": time.time() if now is None else now,
        "end_at": None,
        "voided": False,
    }
    conn.execute(insert(EngineSwap).values(**row))
    set_engine(conn, engine_id, state=EngineState.SWAPPING)
    return row["id"]


def end_swap(conn: Connection, swap_id: str, now: float | None = None) -> None:
    """Record that the weights are loaded and stamped; commit this before the engine resumes.

    The engine's version becomes the new one and its state stays swapping. Raises NotFound, Conflict (ended already).
    """
    swap = read_swap(conn, swap_id)
    lock_engine(conn, swap.engine_id)
    if swap.end_at is not None:
        raise Conflict(f"swap {swap_id} has ended already")
    moment = max(time.time() if now is None else now, swap.begin_at)
    conn.execute(update(EngineSwap).where(EngineSwap.id == swap_id).values(end_at=moment))
    set_engine(conn, swap.engine_id, version=swap.new_version)


def resume(conn: Connection, engine_id: str) -> None:
    """The engine generates again and its probe was right: ready. Raises NotFound, Conflict (it was not swapping)."""
    engine = lock_engine(conn, engine_id)
    if engine.state not in (EngineState.SWAPPING, EngineState.READY):
        raise Conflict(f"engine {engine_id} is {engine.state}, not swapping: publish to it again")
    set_engine(conn, engine_id, state=EngineState.READY, error=None)


def quarantine(conn: Connection, engine_id: str, error: str) -> None:
    """A load or a probe failed: no traffic, version unknown, until it is restarted. Raises NotFound."""
    lock_engine(conn, engine_id)
    set_engine(conn, engine_id, state=EngineState.QUARANTINED, version=None, error=error)


def void_swap(conn: Connection, swap_id: str) -> int:
    """The probe after resume failed: what the engine sampled since ``end_at`` is untrainable, written or to come.

    Returns how many written spans that changed. Raises NotFound, Conflict (the swap never ended).
    """
    swap = read_swap(conn, swap_id)
    lock_engine(conn, swap.engine_id)
    if swap.end_at is None:
        raise Conflict(f"swap {swap_id} has not ended: quarantine the engine instead")
    conn.execute(update(EngineSwap).where(EngineSwap.id == swap_id).values(voided=True))
    touched = update(Span).where(
        Span.engine_id == swap.engine_id, Span.ended_at > swap.end_at, Span.trainable.is_(True)
    )
    return conn.execute(touched.values(trainable=False, untrainable_reason=VOIDED_REASON)).rowcount


def read_swap(conn: Connection, swap_id: str) -> Row[Any]:
    """The swap's row. Raises NotFound."""
    row = conn.execute(select(EngineSwap.__table__).where(EngineSwap.id == swap_id)).one_or_none()
    if row is None:
        raise NotFound(f"no swap {swap_id}")
    return row


def set_engine(conn: Connection, engine_id: str, **values: Any) -> None:
    """Change columns of the engine's row."""
    conn.execute(update(Engine).where(Engine.id == engine_id).values(**values))
