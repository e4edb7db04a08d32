"""User code as a user would write it: a task source and a reward function. Imports no harness: those are slow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def price_tasks(count: int = 4, epoch: int = 0) -> Iterator[dict[str, Any]]:
    for number in range(count):
        yield {
            "prompt": f"What is the price of item{number}?",
            "prices": {f"item{number}": number + 10 * epoch},
        }


def price_reward(task: dict[str, Any], outcome: Any) -> float:
    item, price = next(iter(task["prices"].items()))
    used = [(call.name, call.arguments) for call in outcome.tool_calls]
    return float(outcome.final_text == str(price) and used == [("get_price", {"item": item})])
