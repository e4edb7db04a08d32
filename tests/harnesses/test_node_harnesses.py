"""The real coding agents of the Node world, unmodified, each through its own dialect: read a file, write a file, answer.

Each has to take the model's tool calls as they are, do them, and send a history that the proxy finds again: one main
line, every prompt an exact extension of the one before (see ``Run.check``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from harness_adapters.errors import HarnessMissing
from harness_adapters.node.base import NodeHarness
from harness_adapters.node.table import NODE_HARNESSES
from tests.harnesses.qwen3_model import WINDOW
from tests.harnesses.script import Turns, answer, call, think
from tests.harnesses.world import Run, World

pytestmark = [pytest.mark.engine, pytest.mark.harness, pytest.mark.timeout(900)]

TASK = "Copy the word in task.txt to answer.txt, then say the word."
FILES = {"task.txt": "lantern\n"}
ANSWER = "The word is lantern."


@dataclass(frozen=True)
class Tools:
    """How one harness calls what the task needs: (tool, arguments) to read and to write."""

    read: tuple[str, Mapping[str, Any]]
    write: tuple[str, Mapping[str, Any]]

    def script(self) -> Turns:
        """With thinking and text before the first call: what harnesses echo, alter or drop."""
        return Turns(
            [
                call(*self.read, text="I read it.", before=think("What does the file say?")),
                call(*self.write),
                answer(ANSWER),
            ]
        )


def shell(tool: str, argument: str, **more: Any) -> Tools:
    """A harness that does both by a shell."""
    return Tools(
        (tool, {argument: "cat task.txt", **more}), (tool, {argument: "cat task.txt > answer.txt", **more})
    )


TOOLS = {
    "claude-code": shell("Bash", "command"),
    "cline": Tools(
        ("run_commands", {"commands": ["cat task.txt"]}),
        ("run_commands", {"commands": ["cat task.txt > answer.txt"]}),
    ),
    "codex": shell("exec_command", "cmd"),
    "copilot": shell("bash", "command", description="The word"),
    "gemini-cli": shell("run_shell_command", "command"),
    "opencode": Tools(
        ("read", {"filePath": "task.txt"}), ("write", {"filePath": "answer.txt", "content": "lantern\n"})
    ),
    "pi": Tools(("read", {"path": "task.txt"}), ("write", {"path": "answer.txt", "content": "lantern\n"})),
    "qwen-code": shell("run_shell_command", "command", is_background=False),
    "qwen-code-0.15": shell("run_shell_command", "command", is_background=False),
}
DIALECTS = {
    "claude-code": "messages",
    "codex": "responses",
    "gemini-cli": "gemini",
    "opencode": "chat",
}
"""The harness that stands for its dialect in ``make test``."""


def installed(kind: str, **settings: Any) -> NodeHarness:
    """The adapter, its harness installed if need be; skips where this machine's Node cannot run it."""
    adapter = NODE_HARNESSES[kind](context_window=WINDOW, **settings)
    try:
        adapter.environment.require_node()
    except HarnessMissing as error:
        pytest.skip(str(error))
    adapter.environment.install()
    return adapter


def run_task(world: World, kind: str, **settings: Any) -> tuple[Run, Turns]:
    script = TOOLS[kind].script()
    return world.run(installed(kind, **settings), TASK, script, files=FILES), script


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.dialect] if kind in DIALECTS else []) for kind in TOOLS]
)
def test_harness(world: World, kind: str) -> None:
    run, script = run_task(world, kind)
    run.check(script, side=0)
    assert run.files["answer.txt"] == "lantern\n", run.describe()
    assert ANSWER in run.outcome.final_text, run.describe()
    assert {span.dialect for span in run.spans} == {DIALECTS.get(kind, "chat")}


def test_a_title_request_is_a_line_of_its_own(world: World) -> None:
    """OpenCode asks for one beside the task, under the same key and session id."""
    run, script = run_task(world, "opencode", title=None)
    run.check(script, side=1)
    assert run.files["answer.txt"] == "lantern\n", run.describe()
