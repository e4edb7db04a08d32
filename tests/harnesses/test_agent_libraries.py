"""openai-agents and pydantic-ai, real, in warm workers as the runner has them, through the proxy against real vLLM: by
each API that they speak."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from harness_adapters.openai_agents import OpenAIAgents
from harness_adapters.protocol import Endpoint, Job, LibraryAdapter, Outcome, Task
from harness_adapters.pydantic_ai import PydanticAI
from harness_adapters.runner.executors import executor_for
from tests.harnesses.script import Turns, answer, call
from tests.harnesses.world import TIMEOUT_S, Run, World, read_files

pytestmark = [pytest.mark.engine, pytest.mark.harness, pytest.mark.timeout(600)]

PROMPT = "Write ok into done.txt, then say finished."
SCRIPT = Turns(
    [
        call("write_file", '{"path":  "done.txt", "content": "\\u006fk \\u00e4"}', text="I write."),
        answer("finished"),
    ]
)


def run_library(world: World, adapter: LibraryAdapter, folder: Path) -> Run:
    """One task in a worker; the agent's tool writes into ``folder``."""

    async def in_worker(job: Job) -> Outcome:
        executor = executor_for(adapter)
        await executor.start()
        try:
            return await executor.run(job)
        finally:
            await executor.close()

    def work(rollout: str, endpoint: Endpoint) -> tuple[Outcome, None]:
        task = Task({"prompt": PROMPT, "folder": str(folder)})
        return asyncio.run(in_worker(Job(rollout, task, endpoint, folder, folder, TIMEOUT_S))), None

    adapter.check()
    run = world.observe(work, PROMPT, SCRIPT)
    run.files = read_files(folder)
    return run


def agent_of(library: str) -> str:
    return f"tests.harnesses.writer_{library}:writer"


ADAPTERS: dict[str, Any] = {
    "openai-agents-chat": lambda: OpenAIAgents(agent_of("openai_agents"), api="chat"),
    "openai-agents-responses": lambda: OpenAIAgents(agent_of("openai_agents"), api="responses"),
    "pydantic-ai-chat": lambda: PydanticAI(agent_of("pydantic_ai"), api="chat"),
    "pydantic-ai-responses": lambda: PydanticAI(agent_of("pydantic_ai"), api="responses"),
    "pydantic-ai-messages": lambda: PydanticAI(agent_of("pydantic_ai"), api="messages"),
}


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_agent_library(world: World, name: str, tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    run = run_library(world, ADAPTERS[name](), folder)
    run.check(SCRIPT, side=0)
    assert run.files == {"done.txt": "ok ä"} and run.outcome.final_text.strip() == "finished"
    assert [one.name for one in run.outcome.tool_calls] == ["write_file"]
    assert {span.dialect for span in run.spans} == {name.rpartition("-")[2]}
