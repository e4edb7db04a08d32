"""Which engine a call goes to, and how calls wait for one: in order, bounded, and without leaving anything behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.engine.pool import AFFINITY_SLACK, FAILURES_UNTIL_GONE, EngineView, Limits, Pool, SwapClock
from proxy.errors import Refusal
from tests.proxy.test_engine_rules import view


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    @wraps(test)
    def run(*arguments: Any, **named: Any) -> None:
        asyncio.run(test(*arguments, **named))

    return run


def one_at_a_time(**fields: Any) -> Pool:
    pool = Pool(Limits(**{"engine_calls": 1, "queue_calls": 8, "queue_wait_s": 5.0, **fields}))
    pool.replace([view(id="a")])
    return pool


async def soon() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


@in_loop
async def test_the_idlest_engine_is_taken_and_kept_while_it_is_not_much_busier() -> None:
    pool = Pool()
    pool.replace([view(id="a"), view(id="b"), view("stale", None, id="c"), view(id="d", policy_id="other")])
    async with pool.use("p", "r1") as first, pool.use("p", "r2") as second:
        assert {first.id, second.id} == {"a", "b"}
    own = first
    own.in_flight = AFFINITY_SLACK
    async with pool.use("p", "r1") as again:
        assert again is own
    own.in_flight = AFFINITY_SLACK + 1
    async with pool.use("p", "r1") as other:
        assert other is second
    own.in_flight = 0
    async with pool.use("p", "r1", avoid=second.id) as retry:
        assert retry is own


@in_loop
async def test_an_engine_that_does_not_answer_this_proxy_is_left_out() -> None:
    """Another proxy may reach it, and keep its row ready."""
    pool = Pool()
    pool.replace([view(id="a", failures=FAILURES_UNTIL_GONE), view(id="b")])
    for rollout in "uvw":
        async with pool.use("p", rollout, avoid="b") as engine:
            assert engine.id == "b"
    pool.replace([view(id="a", failures=FAILURES_UNTIL_GONE)])
    async with pool.use("p", "r") as engine:
        assert engine.id == "a", "better than none"


@in_loop
async def test_counts_survive_a_refresh() -> None:
    pool = Pool()
    pool.replace([view(id="a")])
    async with pool.use("p", "r"):
        pool.replace([view("swapping", id="a")])
        assert pool.states() == [("a", "p", "swapping", 1, 3)]
    assert pool.states() == [("a", "p", "swapping", 0, 3)]


@pytest.mark.parametrize(
    ("engines", "words"), [([], "singletree engine start"), ([view("quarantined")], "restarted")]
)
@in_loop
async def test_no_engine_names_the_remedy(engines: list[EngineView], words: str) -> None:
    pool = Pool()
    pool.replace(engines)
    with pytest.raises(Refusal, match=words) as caught:
        async with pool.use("p", "r"):
            pass
    assert (caught.value.status, caught.value.retry_after) == (503, 2)


@in_loop
async def test_an_engine_that_drains_takes_no_new_calls() -> None:
    pool = Pool()
    pool.replace([view(id="a"), view(id="b")])
    async with pool.use("p", "r1") as own:
        pool.replace([view("draining" if name == own.id else "ready", id=name) for name in "ab"])
        assert own.in_flight == 1, "the call there goes on"
        for _ in range(3):
            async with pool.use("p", "r1") as other:
                assert other.id != own.id
    assert own.in_flight == 0


@in_loop
async def test_a_full_engine_gives_its_rollouts_to_another() -> None:
    pool = Pool(Limits(engine_calls=2, queue_calls=0))
    pool.replace([view(id="a"), view(id="b")])
    async with pool.use("p", "r") as own:
        own.in_flight = 2
        async with pool.use("p", "r") as other:
            assert other is not own
        own.in_flight = 1


@in_loop
async def test_who_waits_is_served_in_order_and_nobody_overtakes() -> None:
    pool = one_at_a_time()
    served: list[str] = []

    async def call(name: str) -> None:
        async with pool.use("p", name):
            served.append(name)
            await asyncio.sleep(0)

    async with pool.use("p", "first"):
        waiting = []
        for name in "abcde":
            waiting.append(asyncio.create_task(call(name)))
            await soon()
        assert (served, pool.waiting()) == ([], {"p": 5})
    late = asyncio.create_task(call("late"))
    await asyncio.gather(*waiting, late)
    assert served == ["a", "b", "c", "d", "e", "late"]
    assert pool.waiting() == {} and pool.engines["a"].in_flight == 0


@in_loop
async def test_a_full_queue_is_refused_at_once_and_says_when_to_come_back() -> None:
    pool = one_at_a_time(queue_calls=2)
    async with pool.use("p", "r"):
        waiting = [asyncio.create_task(pool.use("p", "w").__aenter__()) for _ in range(2)]
        await soon()
        began = time.monotonic()
        with pytest.raises(Refusal, match="2 calls wait already") as caught:
            async with pool.use("p", "one too many"):
                pass
        assert time.monotonic() - began < 0.5
        assert (caught.value.status, caught.value.code) == (429, "engines_busy")
        assert caught.value.retry_after is not None and caught.value.retry_after >= 1
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
    assert pool.waiting() == {} and pool.engines["a"].in_flight == 0


@in_loop
async def test_a_queue_of_none_refuses_what_would_wait() -> None:
    pool = one_at_a_time(queue_calls=0)
    async with pool.use("p", "r"):
        with pytest.raises(Refusal, match="0 calls wait"):
            async with pool.use("p", "other"):
                pass
    assert pool.waiting() == {}


@in_loop
async def test_a_wait_ends_with_429() -> None:
    pool = one_at_a_time(queue_wait_s=0.05)
    async with pool.use("p", "r"):
        with pytest.raises(Refusal, match=r"within 0\.05 s") as caught:
            async with pool.use("p", "other"):
                pass
        assert caught.value.status == 429
        assert pool.waiting() == {}
    assert pool.engines["a"].in_flight == 0


@in_loop
async def test_a_weight_swap_does_not_count_as_waiting() -> None:
    pool = one_at_a_time(queue_wait_s=0.1)
    async with pool.use("p", "r"):
        waiting = asyncio.create_task(pool.use("p", "other").__aenter__())
        await soon()
        pool.replace([view("swapping", id="a")])
        await asyncio.sleep(0.3)
        assert not waiting.done()
        pool.replace([view(id="a", version=4)])
        await asyncio.sleep(0.3)
        with pytest.raises(Refusal):
            waiting.result()


@in_loop
async def test_a_caller_that_leaves_frees_its_place() -> None:
    pool = one_at_a_time(queue_calls=1)
    async with pool.use("p", "r"):
        leaves = asyncio.create_task(pool.use("p", "leaves").__aenter__())
        await soon()
        leaves.cancel()
        await asyncio.gather(leaves, return_exceptions=True)
        assert pool.waiting() == {}
        stays = asyncio.create_task(pool.use("p", "stays").__aenter__())
        await soon()
    assert (await stays).id == "a"


@in_loop
async def test_a_caller_that_leaves_as_it_is_served_gives_the_engine_back() -> None:
    pool = one_at_a_time()
    async with pool.use("p", "r"):
        leaves = asyncio.create_task(pool.use("p", "leaves").__aenter__())
        await soon()
    leaves.cancel()  # the engine is its own already, and it has not run since
    await asyncio.gather(leaves, return_exceptions=True)
    assert pool.engines["a"].in_flight == 0
    async with pool.use("p", "next") as engine:
        assert engine.id == "a"


@in_loop
async def test_those_who_wait_learn_at_once_that_no_engine_is_left() -> None:
    pool = one_at_a_time()
    async with pool.use("p", "r"):
        waiting = asyncio.create_task(pool.use("p", "other").__aenter__())
        await soon()
        pool.replace([view("quarantined", None, id="a")])
        with pytest.raises(Refusal, match="restarted"):
            await waiting


@in_loop
async def test_an_engine_that_joins_serves_those_who_wait() -> None:
    pool = one_at_a_time()
    async with pool.use("p", "r"):
        waiting = asyncio.create_task(pool.use("p", "other").__aenter__())
        await soon()
        pool.replace([view(id="a"), view(id="b")])
        assert (await waiting).id == "b"


def test_the_clock_of_swaps_counts_only_them() -> None:
    clock = SwapClock()
    for now, swapping in ((0.0, False), (1.0, True), (2.0, True), (4.0, False), (5.0, False), (7.0, True)):
        clock.mark(swapping, now)
    assert [clock.read(now) for now in (7.0, 9.5)] == [3.0, 5.5]


@in_loop
async def test_nobody_overtakes_though_an_engine_has_room_again() -> None:
    """An engine that answered no health check takes calls again when it does, which nobody tells the queue at once."""
    pool = one_at_a_time()
    pool.replace([view(id="a"), view(id="b", failures=FAILURES_UNTIL_GONE)])
    async with pool.use("p", "r"):
        first = asyncio.create_task(pool.use("p", "first").__aenter__())
        await soon()
        pool.engines["b"].failures = 0
        second = asyncio.create_task(pool.use("p", "second").__aenter__())
        await soon()
        assert not second.done()
        pool.replace([view(id="a"), view(id="b")])
        assert (await first).id == "b"
        assert not second.done()
    assert (await second).id == "a"


KINDS = ["come", "come", "come", "come", "leave", "leave", "end", "swap", "drain", "back"]
STEP = st.tuples(st.sampled_from(KINDS), st.integers(0, 11))


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(STEP, min_size=8, max_size=40), calls=st.integers(1, 2), places=st.integers(0, 3))
def test_whatever_happens_nothing_is_lost_and_no_bound_is_passed(
    steps: list[tuple[str, int]], calls: int, places: int
) -> None:
    """Callers come, leave and end in any order while engines change; at the end everything is as at the start."""

    async def check() -> None:
        pool = Pool(Limits(engine_calls=calls, queue_calls=places, queue_wait_s=30.0))
        states = dict.fromkeys("ab", "ready")
        pool.replace([view(id=name) for name in states])
        callers: list[tuple[asyncio.Task[None], asyncio.Event]] = []
        served: list[int] = []

        async def call(number: int, ended: asyncio.Event) -> None:
            async with pool.use("p", f"r{number % 3}"):
                served.append(number)
                await ended.wait()

        for number, (step, which) in enumerate(steps):
            if step == "come":
                ended = asyncio.Event()
                callers.append((asyncio.create_task(call(number, ended)), ended))
            elif step in ("leave", "end") and (open_calls := [one for one in callers if not one[0].done()]):
                task, ended = open_calls[which % len(open_calls)]
                task.cancel() if step == "leave" else ended.set()
            elif step in ("swap", "drain", "back"):
                names = {"swap": "swapping", "drain": "draining", "back": "ready"}
                states["ab"[which % 2]] = names[step]
                pool.replace([view(state, id=name) for name, state in states.items()])
            if which % 4:  # else the next step finds things half done
                await soon()
            assert all(0 <= engine.in_flight <= calls for engine in pool.engines.values())
            assert sum(pool.waiting().values()) <= places
        assert served == sorted(served), "first come, first served"
        for _, ended in callers:
            ended.set()
        results = await asyncio.wait_for(
            asyncio.gather(*(task for task, _ in callers), return_exceptions=True), 5
        )
        assert all(isinstance(result, Refusal | asyncio.CancelledError | None) for result in results), results
        assert pool.waiting() == {}
        assert [engine.in_flight for engine in pool.engines.values()] == [0, 0]

    asyncio.run(check())
