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


def write_config(folder: Path, proxy: ProxyProcess, policy: str, **settings: Any) -> Path:
    config = {
        "proxy": proxy.url,
        "keys_file": str(proxy.keys_file),
        "policy": policy,
        "concurrency": 4,
        "timeout_s": 60,
        "tasks": {"kind": "function", "function": f"{HERE}:price_tasks", "args": {"count": 3}},
        "reward": {"kind": "function", "function": f"{HERE}:price_reward"},
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
