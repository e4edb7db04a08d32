"""The real coding agents of the Node world, unmodified, each through its own dialect: read a file, write a file, answer.

Each has to take the model's tool calls as they are, do them, and send a history that the proxy finds again: one main
line, every prompt an exact extension of the one before (see ``Run.check``).
"""

from __future__ import annotations

import pytest

from tests.harnesses.node_tasks import ANSWER, DIALECTS, TOOLS, run_task
from tests.harnesses.world import World

pytestmark = [pytest.mark.engine, pytest.mark.harness, pytest.mark.timeout(900)]


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.dialect] if kind in DIALECTS else []) for kind in TOOLS]
)
def test_harness(world: World, kind: str) -> None:
    run, script = run_task(world, kind)
    run.check(script, side=0)
    assert run.files["answer.txt"] == "lantern\n", run.describe()
    assert ANSWER in run.outcome.final_text, run.describe()
    assert {span.dialect for span in run.spans} == {DIALECTS.get(kind, "chat")}
