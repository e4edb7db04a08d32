"""The demo's agent, as any user of pydantic-ai would write it: a plain ``Agent`` with three tools.

It knows nothing of Singletree; the adapter runs it against the proxy. Its ``deps`` are the task's payload, from which
the tools read the shop's facts, and ``score`` is its reward.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_ai import Agent, RunContext

from singletree.demo.reward import grade
from singletree.demo.tasks import SYSTEM

Shop = dict[str, Any]

agent = Agent(deps_type=dict, instructions=SYSTEM, retries=0)


def look_up(shop: Shop, tool: str, item: str) -> str:
    return shop["facts"][tool] if item == shop["item"] else "no such item"


@agent.tool
def get_price(ctx: RunContext[Shop], item: str) -> str:
    """What the item costs."""
    return look_up(ctx.deps, "get_price", item)


@agent.tool
def get_stock(ctx: RunContext[Shop], item: str) -> str:
    """How many of the item there are."""
    return look_up(ctx.deps, "get_stock", item)


@agent.tool
def get_shelf(ctx: RunContext[Shop], item: str) -> str:
    """Where the item lies."""
    return look_up(ctx.deps, "get_shelf", item)


def score(payload: Mapping[str, Any], outcome: Any) -> float:
    """The reward of one rollout from what the harness did (``final_text`` and ``tool_calls`` of the outcome)."""
    text = outcome.final_text if outcome.failure is None else None
    return grade(payload, [call.name for call in outcome.tool_calls], text)
