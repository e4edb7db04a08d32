"""What each of the Node world's coding agents is given to do in these tests, and how it does it with its own tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import pytest

from harness_adapters.errors import HarnessMissing
from harness_adapters.node.base import NodeHarness
from harness_adapters.node.table import NODE_HARNESSES
from tests.harnesses.qwen3_model import WINDOW
from tests.harnesses.script import Turns, answer, call, think
from tests.harnesses.world import Run, World

TASK = "Copy the word in task.txt to answer.txt, then say the word."
FILES = {"task.txt": "lantern\n"}
ANSWER = "The word is lantern."


@dataclass(frozen=True)
class Tools:
    """How one harness calls what the task needs: (tool, arguments) to read and to write."""

    read: tuple[str, Mapping[str, Any]]
    write: tuple[str, Mapping[str, Any]]

    preset: int = 0
    """See ``Turns``."""

    def script(self) -> Turns:
        """With thinking and text before the first call: what harnesses echo, alter or drop."""
        return Turns(
            [
                call(*self.read, text="I read it.", before=think("What does the file say?")),
                call(*self.write),
                answer(ANSWER),
            ],
            preset=self.preset,
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
    "qwen-code-0.15": replace(shell("run_shell_command", "command", is_background=False), preset=1),
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
