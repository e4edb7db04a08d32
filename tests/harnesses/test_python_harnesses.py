"""The real harnesses that are Python, each in its own environment, through the proxy against real vLLM.

Where a harness repeats what the model said, its line of work is one chain of exact extensions in exact mode. Where it
writes history anew, the expectation is the fork that it causes and the place where that begins.
"""

from __future__ import annotations

import pytest

from harness_adapters.python.base import DrivenLibrary
from harness_adapters.environments.python import PythonEnvironment, find_python
from harness_adapters.errors import HarnessMissing
from harness_adapters.python.langgraph import LangGraph
from tests.harnesses.script import Turns, answer, call
from tests.harnesses.world import World

pytestmark = [pytest.mark.harness, pytest.mark.timeout(1800)]

PROMPT = "Write ok into done.txt, then say finished."
WRITE = call("write_file", '{"path":  "done.txt", "content": "\\u006fk \\u00e4"}')
"""Spaces and escapes that no serialiser would choose."""
LOOK = call("run_command", {"command": "cat done.txt"})
FINISHED = answer("finished")
FILES = {"done.txt": "ok ä"}


def ready(environment: PythonEnvironment) -> None:
    """Installs the harness if it is not there; skips where its Python is missing."""
    try:
        find_python(environment.python, environment.name)
    except HarnessMissing as error:
        pytest.skip(f"HARNESS NOT TESTED: {error}")
    environment.install()


@pytest.mark.parametrize("streaming", [False, True])
def test_langgraph(world: World, streaming: bool) -> None:
    adapter = LangGraph(streaming=streaming)
    ready(adapter.environment)
    script = Turns([WRITE, LOOK, FINISHED])
    run = world.run(adapter, PROMPT, script)
    run.check(script, side=0)
    assert run.files == FILES and run.outcome.final_text.strip() == "finished"
    assert [one.name for one in run.outcome.tool_calls] == ["write_file", "run_command"]
