"""What it costs to build, per rollout, nothing, an agent, a client, or all of it. Not a test; run it as

    python -m tests.harness_adapters.measure_construction

Prints CPU milliseconds of this process per rollout of two model calls and one tool call, with pydantic-ai, 16 at once,
against a scripted server in another process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Awaitable, Callable

import httpx2
from openai import AsyncOpenAI
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from harness_adapters.protocol import Endpoint
from harness_adapters.shared_client import make_client
from tests.harness_adapters.agents_under_test import clerk, clerk_factory
from tests.harness_adapters.scripted_server import ScriptedServer, shop_clerk

ROLLOUTS = 256
AT_ONCE = 16


def serve(pipe) -> None:
    with ScriptedServer(shop_clerk) as server:
        pipe.send(server.url)
        pipe.recv()


def ways(base_url: str) -> dict[str, Callable[[int], Awaitable[str]]]:
    """Name -> how to run rollout number n."""

    def task(number: int) -> dict:
        return {"prompt": f"Price of item{number}?", "prices": {f"item{number}": number}}

    def model(client: AsyncOpenAI) -> OpenAIChatModel:
        return OpenAIChatModel("m", provider=OpenAIProvider(openai_client=client))

    async def shared_all(number: int) -> str:
        return (await clerk.run(task(number)["prompt"], model=shared, deps=task(number))).output

    async def client_each(number: int) -> str:
        own = model(make_client(Endpoint(base_url, f"k{number}", "m"), timeout_s=30))
        return (await clerk.run(task(number)["prompt"], model=own, deps=task(number))).output

    async def agent_each(number: int) -> str:
        own = model(make_client(Endpoint(base_url, f"k{number}", "m"), timeout_s=30))
        return (await clerk_factory(task(number), base_url, "").run(task(number)["prompt"], model=own)).output

    async def everything_each(number: int) -> str:
        async with httpx2.AsyncClient() as http:
            own = model(AsyncOpenAI(base_url=base_url, api_key=f"k{number}", http_client=http))
            return (
                await clerk_factory(task(number), base_url, "").run(task(number)["prompt"], model=own)
            ).output

    shared = model(make_client(Endpoint(base_url, "one key for all", "m"), timeout_s=30))
    return {
        "all shared, keys too": shared_all,
        "client per rollout, connections shared": client_each,
        "agent and client per rollout, connections shared": agent_each,
        "agent, client and connections per rollout": everything_each,
    }


async def measure(base_url: str) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def one(run: Callable[[int], Awaitable[str]], number: int) -> None:
        async with places:
            assert await run(number) == str(number)

    for name, run in ways(base_url).items():
        await asyncio.gather(*(one(run, number) for number in range(AT_ONCE)))
        started = time.process_time()
        await asyncio.gather(*(one(run, number) for number in range(ROLLOUTS)))
        print(f"{name:50} {(time.process_time() - started) / ROLLOUTS * 1000:6.2f} ms CPU per rollout")


def main() -> None:
    ours, theirs = multiprocessing.Pipe()
    server = multiprocessing.Process(target=serve, args=(theirs,))
    server.start()
    asyncio.run(measure(ours.recv() + "/v1"))
    ours.send("stop")
    server.join()


if __name__ == "__main__":
    main()
