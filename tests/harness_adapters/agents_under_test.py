"""User code as a user would write it: agents for both libraries."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import agents as openai_agents
import pydantic_ai

clerk = pydantic_ai.Agent(deps_type=dict, instructions="You are a shop clerk.")


@clerk.tool
def get_price(context: pydantic_ai.RunContext[dict[str, Any]], item: str) -> str:
    """The price of an item."""
    return str(context.deps["prices"][item])


def clerk_factory(task: dict[str, Any], base_url: str, api_key: str) -> pydantic_ai.Agent[None, str]:
    """A new agent per rollout, its facts in a closure."""
    agent = pydantic_ai.Agent(instructions="You are a shop clerk.")

    @agent.tool_plain
    def get_price(item: str) -> str:
        """The price of an item."""
        print("a user's print must not break the worker's protocol")
        return str(task["prices"][item])

    return agent


@openai_agents.function_tool(name_override="get_price")
def get_price_openai(context: openai_agents.RunContextWrapper[dict[str, Any]], item: str) -> str:
    """The price of an item."""
    return str(context.context["prices"][item])


openai_clerk = openai_agents.Agent(
    name="clerk", instructions="You are a shop clerk.", tools=[get_price_openai]
)


async def misbehave(task: dict[str, Any]) -> str:
    """Ways in which an agent goes wrong, named by the task."""
    match task["do"]:
        case "raise":
            raise RuntimeError("the user's own bug\nwith two lines")
        case "sleep":
            await asyncio.sleep(60)
        case "block":
            time.sleep(60)  # noqa: ASYNC251 (the fault under test)
        case "exit":
            sys.exit(3)
        case "fork":
            subprocess.Popen(["sleep", "60"], start_new_session=True)  # noqa: ASYNC220
            await asyncio.sleep(60)
    return "fine"


def misbehaving(task: dict[str, Any], base_url: str, api_key: str) -> Any:
    return misbehave(task)
