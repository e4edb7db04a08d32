"""The real harnesses that are Python programs, or agents of Python libraries, each a process of its own, through the
proxy against real vLLM.

Where a harness repeats what the model said, its line of work is one chain of exact extensions. Where it writes the
history anew, the expectation is the fork that it causes.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness_adapters.environments.python import find_python
from harness_adapters.errors import HarnessMissing
from harness_adapters.mini_swe_agent import MiniSWEAgent
from harness_adapters.python.table import PYTHON_HARNESSES
from tests.harnesses.qwen3_model import WINDOW
from tests.harnesses.script import NO_THOUGHT, Body, Line, Turns, answer, call
from tests.harnesses.world import World

pytestmark = [pytest.mark.engine, pytest.mark.harness, pytest.mark.timeout(1800)]

PROMPT = "Write ok into done.txt, then say finished."
WRITE = call("write_file", '{"path":  "done.txt", "content": "\\u006fk \\u00e4"}')
"""Spaces and escapes that no serialiser would choose."""
LOOK = call("run_command", {"command": "cat done.txt"})
FINISHED = answer("finished")
FILES = {"done.txt": "ok ä"}
SLOW_START_S = 400.0
"""For those that import litellm and more: half a minute on an idle core, minutes on a busy machine."""
BY_SHELL = "printf 'ok ä' > done.txt"


def installed(kind: str, **settings: Any) -> Any:
    """The adapter, its harness installed if need be; skips where its Python is missing."""
    adapter = PYTHON_HARNESSES[kind](**settings)
    try:
        find_python(adapter.environment.python, kind)
    except HarnessMissing as error:
        pytest.skip(f"HARNESS NOT TESTED: {error}")
    adapter.environment.install()
    return adapter


def every_request(body: Body) -> bool:
    """For harnesses without tools on the wire and without side requests."""
    return True


def shell_block(command: str) -> str:
    """How mini-swe-agent's text mode wants a command."""
    return f"{NO_THOUGHT}THOUGHT: go on.\n\n```mswea_bash_command\n{command}\n```"


SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat done.txt"
MINI = {
    "tools": (["mini.yaml"], Turns([call("bash", {"command": BY_SHELL}), call("bash", {"command": SUBMIT})])),
    "responses": (
        ["mini.yaml", "model.model_class=litellm_response"],
        Turns([call("bash", {"command": BY_SHELL}), call("bash", {"command": SUBMIT})]),
    ),
    "text": (
        ["mini_textbased.yaml", "model.model_class=litellm_textbased"],
        Turns([shell_block(BY_SHELL), shell_block(SUBMIT)], is_main=every_request),
    ),
}


@pytest.mark.parametrize("mode", MINI)
def test_mini_swe_agent(world: World, mode: str) -> None:
    config, script = MINI[mode]
    run = world.run(MiniSWEAgent(config=config), PROMPT, script, timeout_s=SLOW_START_S)
    run.check(script, side=0)
    assert run.files == FILES and run.outcome.final_text == "ok ä"
    assert {span.dialect for span in run.spans} == {"responses" if mode == "responses" else "chat"}


@pytest.mark.parametrize(
    "settings",
    [{}, {"streaming": True}, {"api": "responses"}, {"api": "responses", "streaming": True}],
    ids=str,
)
def test_langgraph(world: World, settings: dict[str, Any]) -> None:
    script = Turns([WRITE, LOOK, FINISHED])
    run = world.run(installed("langgraph", **settings), PROMPT, script)
    run.check(script, side=0)
    assert run.files == FILES and run.outcome.final_text.strip() == "finished"
    assert [one.name for one in run.outcome.tool_calls] == ["write_file", "run_command"]
    assert {span.dialect for span in run.spans} == {settings.get("api", "chat")}


@pytest.mark.parametrize("raw", [False, True])
def test_qwen_agent(world: World, raw: bool) -> None:
    """By default the calls are the text's, and come back written anew: what the model spelt otherwise is a fork. The ``seed`` that
    it sends, another in each request, is taken out."""
    script = Turns([WRITE, LOOK, FINISHED], is_main=every_request)
    run = world.run(installed("qwen-agent", use_raw_api=raw), PROMPT, script)
    run.check(script, side=0, forks=() if raw else [2])
    assert run.files == FILES and run.outcome.final_text.strip() == "finished"
    assert [one.name for one in run.outcome.tool_calls] == ["write_file", "run_command"]
    assert all("seed" in span.stripped for span in run.spans)
    assert all(("tools" in span.request) == raw for span in run.spans)


def code(python: str) -> str:
    """How a CodeAgent acts; it stops the model at the closing tag."""
    return f"{NO_THOUGHT}Thought: go on.\n<code>\n{python}\n</code>"


@pytest.mark.parametrize("streaming", [False, True])
def test_smolagents_code(world: World, streaming: bool) -> None:
    """It adds its own words ("Calling tools: ...") to what the assistant said; a listed rule of matching looks past them,
    and the model goes on from what it sampled."""
    texts = [code("""print(write_file("done.txt",  "ok ä"))"""), code("""final_answer("finished")""")]
    script = Turns(texts, is_main=every_request)
    run = world.run(installed("smolagents", streaming=streaming), PROMPT, script)
    run.check(script, side=0)
    assert run.files == FILES and run.outcome.final_text == "finished"
    assert [span.stop_reason for span in run.spans] == ["</code>", "</code>"]


def test_smolagents_tool_calling(world: World) -> None:
    """It forces a call each turn, which no training policy samples freely, and writes past calls as text."""
    script = Turns([WRITE, call("final_answer", {"answer": "finished"})])
    run = world.run(installed("smolagents", agent="tool-calling"), PROMPT, script)
    run.check(script, side=0, forks=[2], untrainable="forced_tool_choice")
    assert run.files == FILES and run.outcome.final_text == "finished"


def test_openhands_sdk(world: World) -> None:
    script = Turns([call("terminal", {"command": BY_SHELL}), call("finish", {"message": "finished"})])
    run = world.run(installed("openhands-sdk", context_window=WINDOW), PROMPT, script, timeout_s=SLOW_START_S)
    run.check(script, side=0)
    assert run.files == FILES and run.outcome.final_text == "finished"
    assert [one.name for one in run.outcome.tool_calls] == ["terminal", "finish"]


def whole_file(text: str) -> str:
    """How aider's format for models that it does not know replaces a file."""
    return f"{NO_THOUGHT}I write it.\n\ndone.txt\n```\n{text}\n```\n"


CHECK = "cat done.txt; grep -q ok done.txt"


class AiderTurns(Turns):
    """Its prompts hold replies of a pretended model, as examples: turns are told by what its tests said."""

    def __call__(self, body: Body) -> tuple[Line, str]:
        if not self.is_main(body):
            return "side", self.side
        return "main", self.texts[CHECK in str(body["messages"])]


def test_aider(world: World) -> None:
    """Its tests fail once, so that there is a second turn; the new file and each edit are committed, with messages asked for
    beside the line. The file's new content stands before the conversation: a fork."""
    script = AiderTurns(
        [whole_file("no"), whole_file("ok ä")], is_main=lambda body: "*file listing*" in str(body["messages"])
    )
    adapter = installed("aider", args=["--auto-test", "--test-cmd", CHECK], files=["done.txt"])
    run = world.run(adapter, PROMPT, script, timeout_s=SLOW_START_S)
    run.check(script, side=3, forks=[2])
    assert run.files == {"done.txt": "ok ä\n"}


def keystrokes(keys: str, *, complete: bool = False) -> str:
    """How terminus-2 acts."""
    commands = [{"keystrokes": keys, "duration": 0.5}] if keys else []
    said = {"analysis": "a", "plan": "p", "commands": commands, "task_complete": complete}
    return NO_THOUGHT + json.dumps(said)


def test_terminus_2(world: World) -> None:
    """Harbor keeps token ids and logprobs of its own: they are the span's."""
    done = keystrokes("", complete=True)
    script = Turns([keystrokes(f"{BY_SHELL}\n"), done, done], is_main=every_request)
    adapter = installed("terminus-2", context_window=WINDOW, rollout_details=True)
    run = world.run(adapter, PROMPT, script, timeout_s=SLOW_START_S)
    run.check(script, side=0)
    assert run.files == FILES
    (kept,) = run.outcome.data["rollout_details"]
    main = run.of("main")
    assert kept["completion_token_ids"] == [span.completion_tokens.tolist() for span in main]  # type: ignore[union-attr]
    assert kept["prompt_token_ids"] == [span.prompt_tokens.tolist() for span in main]  # type: ignore[union-attr]
    assert [len(logprobs) for logprobs in kept["logprobs"]] == [span.logprobs.size for span in main]  # type: ignore[union-attr]
