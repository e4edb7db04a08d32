"""The demo's reward: the right fact, by the right tool, in one call."""

from __future__ import annotations

import pytest

from singletree.demo.reward import grade

PAYLOAD = {
    "tool": "get_price",
    "answer": "$17",
    "facts": {"get_price": "$17", "get_stock": "17", "get_shelf": "A17"},
}


@pytest.mark.parametrize(
    ("calls", "text", "reward"),
    [
        (["get_price"], "$17", 1.0),
        (["get_price"], " $17\n", 1.0),
        (["get_price"], "It is $17.", 0.0),
        (["get_price"], "17", 0.0),
        (["get_price"], "", 0.0),
        (["get_price"], None, 0.0),
        (["get_stock"], "$17", 0.0),
        ([], "$17", 0.0),
        (["get_price", "get_price"], "$17", 0.0),
        (["get_stock", "get_price"], "$17", 0.0),
    ],
)
def test_grade(calls: list[str], text: str | None, reward: float) -> None:
    assert grade(PAYLOAD, calls, text) == reward
