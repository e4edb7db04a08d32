"""The label of a line of work: which header gives it, as recorded from each harness."""

from __future__ import annotations

import pytest

from proxy.thread import MOST, thread_of
from tests.corpus.traffic import requests

MAIN, SUB = "01a22dea-9721-7391-b8a5-94c01234eaf3", "01a22dea-97b0-7b43-9683-c776ca018e46"


def labels(name: str) -> list[str | None]:
    """Of each recorded request of a file."""
    return [
        thread_of([(key.lower().encode(), value.encode()) for key, value in one["headers"].items()])
        for one in requests(name)
    ]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("codex-sub", [MAIN, MAIN, SUB]),
        ("opencode", ["ses_dd2151d6affewICryRajnOgys2"] * 3),
        ("openhands-sdk", ["920d8b78-b683-4732-91e5-977f2cf4730b"] * 2),
        ("terminus2", ["sess-1"] * 3),
        ("vibe", ["dbf97d74-5423-3a2f-eb97-0cf397599d39"] * 2),
        ("claude-code", [None, None, None]),
        ("qwen-code", [None, None]),
        ("copilot", [None, None]),
    ],
)
def test_recorded_harnesses(name: str, expected: list[str | None]) -> None:
    assert labels(name) == expected


def test_the_more_telling_header_wins_wherever_it_stands() -> None:
    agent, session = (b"x-claude-code-agent-id", b"a1"), (b"x-session-id", b"s1")
    assert thread_of([session, agent]) == thread_of([agent, session]) == "a1"
    assert thread_of([(b"x-claude-code-agent-id", b" "), session]) == "s1"
    assert thread_of([session, (b"x-session-id", b"s2")]) == "s1"
    assert thread_of([(b"authorization", b"Bearer k"), (b"x-api-key", b"k")]) is None


def test_an_odd_label_is_bounded_text() -> None:
    label = thread_of([(b"thread-id", b"\xff" * 5000)])
    assert label == "\xff" * MOST
