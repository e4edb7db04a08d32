"""mini-swe-agent: its ``mini`` command, unmodified, one process per rollout.

The agent works in the rollout's workspace with a shell. Its answer is what it submits: whatever its last command
prints after the line COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT. The trajectory is written out of the agent's sight.

Measured with 2.4.6: chat completions, not streaming, over litellm; ``mini`` takes seconds to import.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness_adapters.command import outcome_of
from harness_adapters.environment import clean_environment, openai_environment
from harness_adapters.errors import HarnessMissing
from harness_adapters.installed import REMEDY, require
from harness_adapters.protocol import FailureKind, Finished, Job, Launch, Outcome, ToolCall

DISTRIBUTION = "mini-swe-agent"
PROVED_VERSION = "2.4.6"

ENDINGS: dict[str, FailureKind | None] = {
    "Submitted": None,
    "LimitsExceeded": "agent",
    "RepeatedFormatError": "agent",
    "ContextWindowExceededError": "agent",
    "TimeExceeded": "timeout",
}
"""mini's own word for how it ended -> whose fault that is; other words are exceptions' names, mostly of litellm."""


@dataclass
class MiniSWEAgent:
    """Adapter: see the module."""

    config: list[str] = field(default_factory=lambda: ["mini.yaml"])
    step_limit: int = 0
    any_version: bool = False
    name: str = "mini-swe-agent"

    def check(self) -> None:
        require(DISTRIBUTION, PROVED_VERSION, any_version=self.any_version)
        if not mini_path().is_file():
            raise HarnessMissing(f"the program {mini_path()} is missing; run: {REMEDY}")

    def prepare(self, job: Job) -> Launch:
        options = [word for value in self.config for word in ("-c", value)]
        if self.step_limit:
            options += ["-c", f"agent.step_limit={self.step_limit}"]
        env = {
            **clean_environment(),
            **openai_environment(job.endpoint),
            "MSWEA_CONFIGURED": "true",
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # otherwise it asks the internet first
            "NO_COLOR": "1",
        }
        return Launch(
            argv=[
                str(mini_path()),
                *options,
                "-m",
                f"openai/{job.endpoint.model}",
                "-t",
                job.task.prompt,
                "-y",
                "-l",
                "0",
                "--exit-immediately",
                "-o",
                str(trajectory_path(job)),
            ],
            env=env,
            cwd=job.workspace,
        )

    def collect(self, job: Job, finished: Finished) -> Outcome:
        outcome = outcome_of(job, finished)
        outcome.final_text = ""  # what mini prints is its log
        try:
            trajectory = json.loads(trajectory_path(job).read_text())
        except (OSError, ValueError) as error:
            if outcome.succeeded:
                outcome.failure, outcome.error = "error", f"mini left no trajectory: {error}"
            return outcome
        read_trajectory(trajectory, outcome)
        return outcome


def mini_path() -> Path:
    """The ``mini`` program of the environment that the runner itself runs in."""
    return Path(sys.executable).parent / "mini"


def trajectory_path(job: Job) -> Path:
    """Where mini writes what happened."""
    return job.scratch / "trajectory.json"


def read_trajectory(trajectory: dict[str, Any], outcome: Outcome) -> None:
    """Fill the outcome from mini's trajectory format."""
    info = trajectory.get("info", {})
    status = str(info.get("exit_status") or "")
    outcome.final_text = str(info.get("submission") or "").strip()
    outcome.tool_calls = list(tool_calls(trajectory.get("messages", [])))
    outcome.data = {"exit_status": status, "api_calls": info.get("model_stats", {}).get("api_calls")}
    if outcome.timed_out or status == "Submitted":
        return
    outcome.failure = ENDINGS.get(status) or ("upstream" if is_upstream(status) else "error")
    outcome.error = outcome.error or f"mini ended with {status or 'no status'}"


def is_upstream(status: str) -> bool:
    """Whether an exception's name is litellm's for a server that gives no answer."""
    return status in {
        "APIConnectionError",
        "APIError",
        "AuthenticationError",
        "InternalServerError",
        "RateLimitError",
        "ServiceUnavailableError",
        "Timeout",
    }


def tool_calls(messages: list[dict[str, Any]]) -> list[ToolCall]:
    """The calls that the model made, in order."""
    calls = []
    for message in messages:
        for call in message.get("tool_calls") or []:
            text = call.get("function", {}).get("arguments", "")
            try:
                arguments: Any = json.loads(text)
            except (TypeError, ValueError):
                arguments = text
            calls.append(ToolCall(call.get("function", {}).get("name", ""), arguments))
    return calls
