"""Real harnesses, unmodified, through the real runner and the real proxy."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from singletree.cli import app
from tests.harness_adapters.conftest import ROOT, ProxyProcess
from tests.harness_adapters.scripted_server import ScriptedServer

HERE = "tests.harness_adapters.agents_under_test"
TASKS = "tests.harness_adapters.clerk_tasks"


def write_config(folder: Path, proxy: ProxyProcess, policy: str, /, **settings: Any) -> Path:
    config = {
        "proxy": proxy.url,
        "keys_file": str(proxy.keys_file),
        "policy": policy,
        "concurrency": 4,
        "timeout_s": 60,
        "tasks": {"kind": "function", "function": f"{TASKS}:price_tasks", "args": {"count": 3}},
        "reward": {"kind": "function", "function": f"{TASKS}:price_reward"},
        "workspaces": str(folder),
        **settings,
    }
    path = folder / "config.yaml"
    path.write_text(json.dumps(config))
    return path


def singletree(*arguments: str) -> tuple[int, str]:
    """Run the command in this process; give its exit code and output."""
    result = CliRunner().invoke(app, ["run", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return getattr(result.exception, "exit_code", 99), f"{result.output}\n{result.exception}"
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("kind", "agent"),
    [("pydantic-ai", "clerk"), ("pydantic-ai", "clerk_factory"), ("openai-agents", "openai_clerk")],
)
def test_library_harness(
    proxy: ProxyProcess,
    clerk_upstream: ScriptedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    agent: str,
) -> None:
    monkeypatch.chdir(ROOT)
    policy = f"clerk-{agent.replace('_', '-')}"
    proxy.add_policy(policy, clerk_upstream.url)
    events = tmp_path / "events.jsonl"
    config = write_config(tmp_path, proxy, policy, harness={"kind": kind, "agent": f"{HERE}:{agent}"})
    code, output = singletree(str(config), "--events", str(events))
    assert code == 0, output
    assert "1.0000" in output and "n = 6" in output
    groups = proxy.groups(policy)
    assert [len(group["rollouts"]) for group in groups] == [2, 2, 2]
    for group in groups:
        prompt = proxy.call("GET", f"/api/groups/{group['id']}")["task"]["payload"]["prompt"]
        assert group["state"] == "settled"
        for rollout in group["rollouts"]:
            row = proxy.rollout(rollout["id"])
            assert (row["state"], row["reward"], row["reward_state"]) == ("succeeded", 1.0, "final")
            spans = proxy.spans(rollout["id"])
            assert [span["status"] for span in spans] == ["ok", "ok"]
            # Each call is filed under the rollout that made it, though all share one client.
            assert all(prompt in json.dumps(span["request"]) for span in spans)
    names = [json.loads(line)["event"] for line in events.read_text().splitlines()]
    assert names[0] == "run_started" and names[-1] == "run_ended" and names.count("rollout_ended") == 6
    assert list(tmp_path.glob("singletree-*")) == []


def test_command_in_short_form(proxy: ProxyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's three lines, with the example agent."""

    def adder(body: dict[str, Any]) -> dict[str, Any]:
        last = body["messages"][-1]
        return (
            {"content": last["content"]}
            if last["role"] == "tool"
            else {"tool_calls": [("add", {"a": 2, "b": 3})]}
        )

    monkeypatch.chdir(ROOT)
    with ScriptedServer(adder) as upstream:
        proxy.add_policy("adder", upstream.url)
        code, output = singletree(
            *(
                "--proxy",
                proxy.url,
                "--keys-file",
                str(proxy.keys_file),
                "--policy",
                "adder",
                "--purpose",
                "eval",
            ),
            *("--task", "2 + 3?", "--reward", "exit-code", "--", sys.executable, "examples/my_agent.py"),
        )
    assert code == 0, output
    (group,) = proxy.groups("adder")
    assert group["purpose"] == "eval" and group["size"] == 1
    row = proxy.rollout(group["rollouts"][0]["id"])
    assert row["info"]["final_text"] == "5" and row["reward"] == 1.0


def test_mini_swe_agent(proxy: ProxyProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It works in its workspace, submits, and is judged by a program that looks at what it made."""

    def worker(body: dict[str, Any]) -> dict[str, Any]:
        if any(message["role"] == "tool" for message in body["messages"]):
            command = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat made.txt"
        else:
            command = "cp given.txt made.txt && env > /dev/null"
        return {"content": "I act.", "tool_calls": [("bash", {"command": command})]}

    monkeypatch.chdir(ROOT)
    (tmp_path / "template").mkdir()
    (tmp_path / "template" / "given.txt").write_text("forty-two")
    with ScriptedServer(worker) as upstream:
        proxy.add_policy("mini", upstream.url, group_size=1)
        config = write_config(
            tmp_path,
            proxy,
            "mini",
            harness={"kind": "mini-swe-agent", "workspace": str(tmp_path / "template"), "step_limit": 5},
            tasks={"kind": "inline", "tasks": ["Copy the file."]},
            reward={"kind": "command", "argv": ["cmp", "given.txt", "made.txt"]},
        )
        code, output = singletree(str(config))
    assert code == 0, output
    (group,) = proxy.groups("mini")
    row = proxy.rollout(group["rollouts"][0]["id"])
    assert (row["state"], row["reward"], row["info"]["final_text"]) == ("succeeded", 1.0, "forty-two")
    assert row["info"]["data"] == {"exit_status": "Submitted", "api_calls": 2}
    assert len(proxy.spans(row["id"])) == 2
    assert list(tmp_path.glob("singletree-*")) == []


def test_a_command_gets_its_task_and_nothing_that_opens_more(
    proxy: ProxyProcess, clerk_upstream: ScriptedServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINGLETREE_KEY", proxy.key("runner"))
    monkeypatch.setenv("OPENAI_API_KEY", "the user's own")
    proxy.add_policy("environment", clerk_upstream.url, group_size=1)
    source = (
        "import json, os, sys; shown = {n: v for n, v in os.environ.items() if n[:4] in ('TASK', 'OPEN', 'SING')};"
        "print(json.dumps([sys.argv[1], sys.stdin.read(), shown]))"
    )
    prompt = 'say "{task_id}" and {braces} and $HOME'
    config = write_config(
        tmp_path,
        proxy,
        "environment",
        harness={
            "kind": "command",
            "argv": [sys.executable, "-c", source, "{prompt} / {task_id}"],
            "stdin": "prompt",
            "pass_fields": ["colour"],
        },
        tasks={
            "kind": "inline",
            "tasks": [{"id": "t1", "prompt": prompt, "answer": "secret", "colour": "red"}],
        },
        reward={"kind": "contains", "field": "colour"},
    )
    code, output = singletree(str(config))
    assert code == 0, output
    (group,) = proxy.groups("environment")
    row = proxy.rollout(group["rollouts"][0]["id"])
    text = row["info"]["final_text"]
    assert text.startswith(json.dumps([f"{prompt} / t1", prompt])[:-1])
    assert '"TASK_COLOUR": "red"' in text and "secret" not in text
    assert proxy.key("runner") not in text and "the user's own" not in text
    assert f'"OPENAI_BASE_URL": "{proxy.url}/v1"' in text and '"OPENAI_API_KEY": "st-agent-' in text


@pytest.mark.parametrize(
    ("change", "code", "words"),
    [
        ({"proxy": "http://127.0.0.1:9"}, 3, "no proxy answers at http://127.0.0.1:9"),
        ({"keys_file": None, "key": "st-runner-wrong"}, 3, "does not know this key"),
        ({"policy": "not-there"}, 3, "policy 'not-there' is unknown"),
        ({"keys_file": "/nowhere/keys.json"}, 2, "cannot read the runner key"),
        ({"harness": {"kind": "pydantic-ai", "agent": "no.such:agent"}}, 2, "no module named 'no'"),
        ({"harness": {"kind": "command", "argv": ["false"]}}, 1, "no rollout succeeded (6 failed"),
    ],
)
def test_mistakes_end_in_one_line_and_a_code(
    proxy: ProxyProcess,
    clerk_upstream: ScriptedServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    change: dict[str, Any],
    code: int,
    words: str,
) -> None:
    monkeypatch.chdir(ROOT)
    monkeypatch.delenv("SINGLETREE_KEY", raising=False)
    proxy.add_policy("mistakes", clerk_upstream.url)
    settings = {"harness": {"kind": "command", "argv": ["true"]}, **change}
    config = write_config(tmp_path, proxy, "mistakes", **settings)
    values = {name: value for name, value in json.loads(config.read_text()).items() if value is not None}
    config.write_text(json.dumps(values))
    found, output = singletree(str(config))
    message = output.rstrip().splitlines()[-1]
    assert (found, words in message) == (code, True), output
