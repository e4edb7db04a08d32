"""Side lines of the real coding agents: titles, sub-agents, summaries. All share the rollout's key with the main line, and
none may get into it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from spanlog.lineage import Role
from tests.harnesses.node_tasks import ANSWER, TOOLS, installed, run_task
from tests.harnesses.script import Body, Line, Turns, answer, call, has_tools, replies, said_by_user
from tests.harnesses.world import World

pytestmark = [pytest.mark.engine, pytest.mark.harness, pytest.mark.timeout(900)]

SUBTASK = "SUBTASK: say the word done"
SAID = "The sub-agent says done."


def test_a_title_request_is_a_line_of_its_own(world: World) -> None:
    """OpenCode asks for one beside the task, under the same key and session id."""
    run, script = run_task(world, "opencode", title=None)
    run.check(script, side=1)
    assert run.roles("side") == {Role.SIDE}, run.describe()
    assert run.files["answer.txt"] == "lantern\n", run.describe()


SPAWN: dict[str, tuple[str, Mapping[str, Any]]] = {
    "claude-code": (
        "Agent",
        {
            "description": "A word",
            "prompt": SUBTASK,
            "subagent_type": "general-purpose",
            "run_in_background": False,
        },
    ),
    "copilot": (
        "task",
        {"description": "A word", "prompt": SUBTASK, "agent_type": "general-purpose", "name": "one"},
    ),
    "opencode": ("task", {"description": "A word", "prompt": SUBTASK, "subagent_type": "general"}),
    "qwen-code-0.15": (
        "agent",
        {"description": "A word", "prompt": SUBTASK, "subagent_type": "general-purpose"},
    ),
}


@pytest.mark.parametrize("kind", SPAWN)
def test_a_sub_agent_is_a_line_of_its_own(world: World, kind: str) -> None:
    """Its requests have tools as the main line's have; only its task tells them apart."""
    script = Turns(
        [call(*SPAWN[kind]), answer(ANSWER)],
        side=answer(SAID),
        is_main=lambda body: has_tools(body) and not said_by_user(body, SUBTASK),
        preset=TOOLS[kind].preset,
    )
    run = world.run(installed(kind), "Have a sub-agent say a word.", script)
    run.check(script)
    assert run.roles("side") == {Role.BRANCH}, run.describe()
    assert SAID in str(run.asked[-1].body["messages"]), "its answer reached the main line"


@dataclass
class Summarised:
    """A main line that the harness cuts short: before its last turn it asks for a summary, and then goes on from that.

    ``texts`` are said by the number of replies in a history that is not yet cut; after the cut only the last is left.
    """

    texts: list[str]
    summary: str = "We read the file."
    cut: bool = False
    lines: list[Line] = field(default_factory=list)

    def __call__(self, body: Body) -> tuple[Line, str]:
        if not has_tools(body):
            self.cut = True
            return "side", answer(self.summary)
        turn = len(self.texts) - 1 if self.cut else replies(body)
        return "main", self.texts[turn]


def test_a_summary_begins_a_new_history(world: World) -> None:
    """OpenCode, told of a window that the file it reads overflows: it asks for a summary and starts a history from it.

    What was said before is kept as it was; what follows the summary extends nothing.
    """
    text = "lantern lantern lantern lantern lantern lantern lantern lantern\n" * 500
    reading = call("read", {"filePath": "task.txt"})
    script = Summarised([reading, reading, answer(ANSWER)])
    adapter = installed("opencode")
    adapter.context_window = 12_000
    run = world.run(adapter, "Read task.txt and say its word.", script, files={"task.txt": text})
    assert run.outcome.failure is None and not run.failures, run.describe()
    assert script.cut and len(run.of("side")) == 1, run.describe()
    first, *_, last = run.of("main")
    assert first.prompt_tokens is not None and last.prompt_tokens is not None
    assert "We read the file." in str(run.asked[-1].body["messages"]), run.describe()
