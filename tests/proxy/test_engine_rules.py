"""Which state an engine is in, and which engine a call goes to. Pure rules."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.engine.health import Verdict, judge, version_of_label
from proxy.engine.pool import AFFINITY_SLACK, EngineView, Pool
from proxy.errors import Refusal
from spanlog.states import EngineState


def view(state: str = "ready", version: int | None = 3, **fields: Any) -> EngineView:
    defaults: dict[str, Any] = {
        "id": "e1",
        "policy_id": "p",
        "policy_version": 3,
        "base_url": "http://x",
        "kind": "vllm",
    }
    return EngineView(**{**defaults, "state": state, "version": version, **fields})


@pytest.mark.parametrize(
    ("label", "policy_version", "version"),
    [
        ("p:3", 3, 3),
        ("p:12", 3, 12),
        ("default", 0, 0),
        ("default", 1, None),
        ("q:3", 3, None),
        ("p:", 3, None),
        ("p:x", 3, None),
        ("3", 3, None),
    ],
)
def test_labels(label: str, policy_version: int, version: int | None) -> None:
    assert version_of_label(label, "p", policy_version) == version


@pytest.mark.parametrize(
    ("engine", "label", "verdict"),
    [
        (view(), "p:3", None),
        (view(version=4), "p:4", None),  # swapped, the publish is not committed yet
        (view(), "default", (EngineState.STALE, None)),  # restarted
        (view(), "p:4", (EngineState.STALE, None)),  # somebody else loaded weights
        (view(version=2), "p:2", (EngineState.STALE, 2)),  # missed a publish
        (view("stale", None), "p:3", (EngineState.READY, 3)),
        (view("stale", None), "default", None),
        (view("gone", None), "p:3", (EngineState.READY, 3)),
        (view("gone", None), "default", (EngineState.STALE, None)),
        (view("swapping"), "p:4", None),
        (view("quarantined", None), "p:3", None),
        (view("draining"), "default", None),
        (view("stale", None, policy_version=0), "default", (EngineState.READY, 0)),
        (view("gone", None, kind="openai", policy_version=0), None, (EngineState.READY, 0)),
    ],
)
def test_an_engine_that_answers(
    engine: EngineView, label: str | None, verdict: tuple[EngineState, int | None] | None
) -> None:
    found = judge(engine, alive=True, label=label)
    assert (found and (found.state, found.version)) == verdict


@pytest.mark.parametrize("state", ["ready", "stale", "swapping", "draining", "quarantined"])
def test_an_engine_that_does_not_answer_is_gone_after_some_tries(state: str) -> None:
    assert judge(view(state, failures=2), alive=False, label=None) is None
    found = judge(view(state, failures=3), alive=False, label=None)
    assert isinstance(found, Verdict)
    assert (found.state, found.version) == (EngineState.GONE, None)
    assert judge(view("gone", None, failures=9), alive=False, label=None) is None


@pytest.mark.parametrize("state", ["ready", "stale", "swapping", "draining", "quarantined"])
def test_a_silent_engine_keeps_the_state_that_others_gave_it(state: str) -> None:
    found = judge(view(state, failures=3), alive=False, label=None, silent=True)
    assert (found is None) == (state in ("swapping", "draining", "quarantined"))


def test_the_idlest_engine_is_taken_and_kept_while_it_is_not_much_busier() -> None:
    pool = Pool()
    pool.replace([view(id="a"), view(id="b"), view("stale", None, id="c"), view(id="d", policy_id="other")])
    with pool.use("p", "r1") as first, pool.use("p", "r2") as second:
        assert {first.id, second.id} == {"a", "b"}
    own = first
    own.in_flight = AFFINITY_SLACK
    with pool.use("p", "r1") as again:
        assert again is own
    own.in_flight = AFFINITY_SLACK + 1
    with pool.use("p", "r1") as other:
        assert other is second
    own.in_flight = 0
    with pool.use("p", "r1", avoid=second.id) as retry:
        assert retry is own


def test_counts_survive_a_refresh() -> None:
    pool = Pool()
    pool.replace([view(id="a")])
    with pool.use("p", "r"):
        pool.replace([view("swapping", id="a")])
        assert pool.states() == [("a", "p", "swapping", 1, 3)]
    assert pool.states() == [("a", "p", "swapping", 0, 3)]


@pytest.mark.parametrize(
    ("engines", "words"), [([], "singletree engine start"), ([view("quarantined")], "restarted")]
)
def test_no_engine_names_the_remedy(engines: list[EngineView], words: str) -> None:
    pool = Pool()
    pool.replace(engines)
    with pytest.raises(Refusal, match=words) as caught, pool.use("p", "r"):
        pass
    assert (caught.value.status, caught.value.retry_after) == (503, 2)
