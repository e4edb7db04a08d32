"""Which state an engine is in. Pure rules; which engine a call goes to is in test_pool.py."""

from __future__ import annotations

from typing import Any

import pytest

from proxy.engine.health import Health, Verdict, _may_serve, judge, version_of_label
from proxy.engine.pool import EngineView
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
    found = judge(engine, health=Health.ALIVE, label=label)
    assert (found and (found.state, found.version)) == verdict


@pytest.mark.parametrize("state", ["ready", "stale", "swapping", "draining", "quarantined"])
def test_an_engine_that_does_not_answer_is_gone_after_some_tries(state: str) -> None:
    assert judge(view(state, failures=2), health=Health.DEAD) is None
    found = judge(view(state, failures=3), health=Health.DEAD)
    assert isinstance(found, Verdict)
    assert (found.state, found.version) == (EngineState.GONE, None)
    assert judge(view("gone", None, failures=9), health=Health.DEAD) is None


@pytest.mark.parametrize(
    ("state", "gone"),
    [("ready", True), ("stale", True), ("swapping", False), ("draining", False), ("quarantined", False)],
)
def test_what_was_decided_about_an_engine_outlives_its_silence(state: str, gone: bool) -> None:
    found = judge(view(state, failures=9), health=Health.SILENT)
    assert (found is not None and found.state == EngineState.GONE) is gone


def test_a_paused_engine_does_not_become_ready() -> None:
    for engine in (view("stale", None), view("gone", None)):
        assert judge(engine, health=Health.ALIVE, label="p:3", generates=False) is None
    found = judge(view("gone", None), health=Health.ALIVE, label="default", generates=False)
    assert found is not None and found.state == EngineState.STALE


@pytest.mark.parametrize(
    ("engine", "label", "may"),
    [
        (view("swapping"), "p:3", True),
        (view("swapping"), "p:4", True),
        (view("swapping"), "default", False),  # restarted in the middle of a swap
        (view("swapping", 0, policy_version=0), "default", True),
        (view("ready"), "p:3", True),
        (view("ready"), "p:4", False),
        (view("stale", None), "p:3", False),
    ],
)
def test_labels_that_may_serve(engine: EngineView, label: str, may: bool) -> None:
    assert _may_serve(engine, label) is may
