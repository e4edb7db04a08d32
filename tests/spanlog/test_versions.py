"""[I2] Every token carries the version that sampled it, or a closed range that holds it; never a wrong one."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select, update

from spanlog import versions
from spanlog.errors import Conflict, NotFound
from spanlog.models import Engine, EngineSwap
from spanlog.versions import UNKNOWN, label_tokens
from spanlog.writer import SpanWriter, read_clock
from tests.spanlog.world import START, World

GUARD = 0.05


@dataclass(frozen=True)
class FakeSwap:
    old_version: int | None
    new_version: int
    begin_at: float
    end_at: float | None
    voided: bool = False


@dataclass(frozen=True)
class Timeline:
    """What really happened to an engine: which weights sampled in which stretch of time."""

    swaps: list[FakeSwap]
    stretches: list[tuple[float, float, int | None]]
    """(from, to, version) while the engine generated; null: weights that a probe refused."""
    current: int | None


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Swaps that end, fail (and are followed by a restart), or are voided, with gaps around the guard's length."""
    clock, version, trusted = 0.0, 0, True
    swaps, stretches = [], []
    gaps = st.sampled_from([0.001, 0.02, 0.049, 0.06, 0.3, 2.0])
    for number in range(1, 1 + draw(st.integers(0, 5))):
        begin = clock + draw(gaps)
        stretches.append((clock, begin, version if trusted else None))
        end = begin + draw(gaps)
        what = draw(st.sampled_from(["loaded", "loaded", "loaded", "failed", "voided"]))
        old = version if trusted else None
        swaps.append(FakeSwap(old, number, begin, None if what == "failed" else end, what == "voided"))
        if what == "failed":
            clock, trusted = end, False
            stretches.append((end, end, None))
        else:
            clock, version, trusted = end, number, what == "loaded"
    last = clock + 1.0
    if swaps and swaps[-1].end_at is None:
        return Timeline(swaps, stretches, None)
    stretches.append((clock, last, version if trusted else None))
    return Timeline(swaps, stretches, version if trusted else None)


@st.composite
def calls(draw: st.DrawFn) -> tuple[Timeline, float, list[tuple[float, float, int | None]]]:
    """A timeline, and the tokens of one call on it as (sampled, received, true version), in order."""
    timeline = draw(timelines())
    live = [stretch for stretch in timeline.stretches if stretch[1] > stretch[0]]
    tokens = []
    for start, end, version in live:
        for _ in range(draw(st.integers(0, 3))):
            sampled = start + (end - start) * draw(st.floats(0.001, 1.0))
            received = sampled + draw(st.sampled_from([0.0, 0.001, GUARD * 0.9]))
            tokens.append((sampled, received, version))
    tokens.sort()
    first = tokens[0][0] if tokens else draw(st.floats(0, 5))
    return timeline, max(0.0, first - draw(st.floats(0, 1))), tokens


def relevant(timeline: Timeline, started_at: float) -> list[FakeSwap]:
    """The swaps that the writer reads: from the last that began before the call did."""
    since = max((swap.begin_at for swap in timeline.swaps if swap.begin_at <= started_at), default=started_at)
    return [swap for swap in timeline.swaps if swap.begin_at >= since]


@given(calls())
def test_a_streamed_token_is_within_its_range(call: tuple) -> None:
    timeline, started_at, tokens = call
    received = [token[1] for token in tokens]
    swaps = relevant(timeline, started_at)
    low, high = label_tokens(
        received, started_at, max([started_at, *received]), swaps, timeline.current, GUARD
    )
    for (_, moment, truth), least, most in zip(tokens, low.tolist(), high.tolist(), strict=True):
        if least == UNKNOWN:
            assert most == UNKNOWN
            continue
        assert truth is not None, "weights that a probe refused never get a version"
        assert least <= truth <= most
        if not any(swap.end_at is not None and swap.end_at < moment <= swap.end_at + GUARD for swap in swaps):
            assert least == most == truth, "outside the guard the version is exact"


@given(timelines(), st.floats(0, 8))
def test_known_weights_far_from_a_swap_are_labelled(timeline: Timeline, moment: float) -> None:
    truths = [version for start, end, version in timeline.stretches if start + GUARD < moment < end]
    low, high = label_tokens([moment], moment, moment, relevant(timeline, moment), timeline.current, GUARD)
    if truths and truths[0] is not None and all(swap.end_at and not swap.voided for swap in timeline.swaps):
        assert low.tolist() == high.tolist() == truths, "not knowing is no excuse when everything is recorded"


@given(calls())
def test_an_unstreamed_reply_carries_a_range_that_holds_every_token(call: tuple) -> None:
    timeline, started_at, tokens = call
    ended_at = max([started_at, *(received for _, received, _ in tokens)])
    swaps = relevant(timeline, started_at)
    low, high = label_tokens(None, started_at, ended_at, swaps, timeline.current, GUARD, count=len(tokens))
    assert low.shape == high.shape == (len(tokens),)
    assert len(set(low.tolist())) <= 1 and len(set(high.tolist())) <= 1
    for (_, _, truth), least, most in zip(tokens, low.tolist(), high.tolist(), strict=True):
        if least != UNKNOWN:
            assert truth is not None and least <= truth <= most
        else:
            assert most == UNKNOWN


def test_the_rule_at_its_edges() -> None:
    swap = FakeSwap(3, 4, 10.0, 12.0)
    moments = [9.0, 10.0, 11.0, 12.0, 12.01, 12.05, 12.06, 20.0]
    low, high = label_tokens(moments, 9.0, 20.0, [swap], 4, GUARD)
    assert low.tolist() == [3, 3, 3, 3, 3, 3, 4, 4]
    assert high.tolist() == [3, 3, 3, 3, 4, 4, 4, 4]
    assert low.dtype == high.dtype == np.int32


def test_what_is_not_known_is_not_guessed() -> None:
    assert label_tokens([1.0], 0.0, 2.0, [], None, GUARD)[0].tolist() == [UNKNOWN]
    after_restart = [FakeSwap(0, 1, 10.0, None), FakeSwap(None, 1, 20.0, 21.0)]
    low, _ = label_tokens([9.0, 15.0, 20.5, 30.0], 9.0, 30.0, after_restart, 1, GUARD)
    assert low.tolist() == [0, UNKNOWN, UNKNOWN, 1]
    contradiction = [FakeSwap(0, 1, 10.0, 11.0)]
    assert label_tokens([9.0, 12.0], 9.0, 12.0, contradiction, 3, GUARD)[0].tolist() == [0, UNKNOWN]


def engine(world: World) -> tuple[str, int | None, str | None]:
    with world.database.read() as conn:
        row = conn.execute(
            select(Engine.state, Engine.version, Engine.error).where(Engine.id == world.engine)
        ).one()
    return row.state, row.version, row.error


def test_a_swap_from_pause_to_ready(world: World) -> None:
    with world.database.begin() as conn:
        swap = versions.begin_swap(conn, world.engine, 1, now=START + 1)
    assert engine(world) == ("swapping", 0, None)
    with world.database.begin() as conn:
        versions.end_swap(conn, swap, now=START + 2)
    assert engine(world) == ("swapping", 1, None)
    with world.database.begin() as conn:
        versions.resume(conn, world.engine)
        assert read_clock(conn, world.engine, START).version == 1
    assert engine(world) == ("ready", 1, None)
    with pytest.raises(Conflict), world.database.begin() as conn:
        versions.end_swap(conn, swap, now=START + 3)


def test_quarantine_forgets_the_version(world: World) -> None:
    with world.database.begin() as conn:
        versions.begin_swap(conn, world.engine, 1)
        versions.quarantine(conn, world.engine, "the load failed")
    assert engine(world) == ("quarantined", None, "the load failed")
    with pytest.raises(Conflict), world.database.begin() as conn:
        versions.resume(conn, world.engine)
    with pytest.raises(NotFound), world.database.begin() as conn:
        versions.begin_swap(conn, "nowhere", 1)


def test_voiding_a_swap_reaches_spans_written_and_to_come(world: World) -> None:
    rollout = world.group().rollouts[0].id
    world.claim(rollout)
    with world.database.begin() as conn:
        swap = versions.begin_swap(conn, world.engine, 1, now=START + 10)
        versions.end_swap(conn, swap, now=START + 11)
        versions.resume(conn, world.engine)
    writer = SpanWriter(world.database)
    before = writer.submit(world.draft(rollout)).result(10)
    world.now = START + 20
    after = writer.submit(world.draft(rollout)).result(10)
    assert (before.trainable, after.trainable) == (True, True)
    assert (before.oldest_version, after.oldest_version) == (0, 1)
    with world.database.begin() as conn:
        assert versions.void_swap(conn, swap) == 1
        versions.quarantine(conn, world.engine, "the probe failed")
    late = writer.submit(world.draft(rollout)).result(10)
    assert (late.trainable, late.untrainable_reason, late.oldest_version) == (False, "unknown_version", None)
    writer.close()


def test_the_writer_reads_from_the_last_swap_before_the_call(world: World) -> None:
    with world.database.begin() as conn:
        for version in range(1, 6):
            swap = versions.begin_swap(conn, world.engine, version, now=START + 10 * version)
            versions.end_swap(conn, swap, now=START + 10 * version + 1)
        clock = read_clock(conn, world.engine, START + 35)
    assert [swap.new_version for swap in clock.swaps] == [3, 4, 5]
    with world.database.begin() as conn:
        assert read_clock(conn, "nowhere", START).version is None
        conn.execute(update(EngineSwap).where(EngineSwap.engine_id == world.engine).values(voided=True))
