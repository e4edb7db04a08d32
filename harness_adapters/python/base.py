"""Agent libraries that run in an environment of their own: one process per rollout, started by a small driver script.

The driver (``harness_adapters/drivers``) builds an agent of the library with tools that act in the workspace, runs it
on the task's prompt and writes a report, which becomes the outcome. The process's home is in the rollout's scratch
folder: libraries keep settings, caches and telemetry ids there, and one rollout must not read another's.
"""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar

from harness_adapters.command import outcome_of
from harness_adapters.environment import clean_environment, openai_environment
from harness_adapters.environments.python import PythonEnvironment
from harness_adapters.protocol import Endpoint, Finished, Job, Launch, Outcome, ToolCall

DRIVERS = Path(__file__).parents[1] / "drivers"
REPORT = "report.json"
"""In the scratch folder, where the agent does not look."""
QUIET = {
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # it asks the internet first otherwise
    "LITELLM_TELEMETRY": "False",
    "LANGSMITH_TRACING": "false",
    "LANGCHAIN_TRACING_V2": "false",
    "OTEL_SDK_DISABLED": "true",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "NO_COLOR": "1",
}
"""Keeps the libraries off the network; none of it reaches the model."""
FOREIGN_PREFIXES = (
    "AIDER_",
    "GH_",
    "GITHUB_",
    "HF_",
    "LANGCHAIN_",
    "LANGSMITH_",
    "OPENHANDS",
    "OLDPWD",
    "PYTHON",
    "VIRTUAL_ENV",
    "XDG_",
)
"""Variables that would bring the user's own configuration, account or Python into a rollout."""


def harness_environment(job: Job, environment: PythonEnvironment) -> dict[str, str]:
    """The process's whole environment: the harness's own Python first on PATH, no Python settings of the runner's."""
    inherited = {
        name: value for name, value in clean_environment().items() if not name.startswith(FOREIGN_PREFIXES)
    }
    home = job.scratch / "home"
    home.mkdir(exist_ok=True)
    return {
        **inherited,
        **openai_environment(job.endpoint),
        **QUIET,
        "HOME": str(home),
        "PWD": str(job.workspace),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "PATH": f"{environment.folder / 'bin'}:{inherited.get('PATH', '')}",
        "PYTHONNOUSERSITE": "1",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


class DrivenLibrary:
    """Base of the adapters whose settings are the driver's settings: a dataclass with these class attributes."""

    environment: ClassVar[PythonEnvironment]
    driver: ClassVar[str]
    """Name of the script, without ``.py``."""
    name: str

    def check(self) -> None:
        self.environment.check()

    def driver_settings(self) -> dict[str, Any]:
        """What the driver is told, as JSON: the adapter's own fields."""
        return {field.name: getattr(self, field.name) for field in fields(self)}  # type: ignore[arg-type]

    def model_environment(self, endpoint: Endpoint) -> dict[str, str]:
        """What the library reads beside OpenAI's variables."""
        return {}

    def prepare(self, job: Job) -> Launch:
        script = DRIVERS / f"{self.driver}.py"
        settings = json.dumps(self.driver_settings())
        return Launch(
            argv=[
                str(self.environment.interpreter),
                str(script),
                str(job.scratch / REPORT),
                settings,
            ],
            env={**harness_environment(job, self.environment), **self.model_environment(job.endpoint)},
            cwd=job.workspace,
            stdin=job.task.prompt.encode(),
        )

    def collect(self, job: Job, finished: Finished) -> Outcome:
        outcome = outcome_of(job, finished)
        outcome.final_text = ""  # what is printed is the library's log
        read_report(job.scratch / REPORT, outcome)
        return outcome


def read_report(path: Path, outcome: Outcome) -> None:
    """Fill the outcome from what a driver wrote; one that wrote nothing has failed, if only by that."""
    try:
        report = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        if outcome.succeeded:
            outcome.failure, outcome.error = "error", f"the driver left no report: {error}"
        return
    outcome.final_text = report["final_text"]
    outcome.tool_calls = [ToolCall(call["name"], call["arguments"]) for call in report["tool_calls"]]
    outcome.data = report["data"]
    if report["failure"] and not outcome.timed_out:
        outcome.failure, outcome.error = report["failure"], report["error"]
