"""What the adapters of Node programs share: the environment of the process, and how it counts as failed."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from harness_adapters.command import outcome_of
from harness_adapters.environment import clean_environment
from harness_adapters.environments.node import NodeEnvironment
from harness_adapters.protocol import Finished, Job, Launch, Outcome

FOREIGN_PREFIXES = (
    "ANTHROPIC",
    "CLAUDE",
    "CLINE",
    "CODEX",
    "COPILOT",
    "GEMINI",
    "GH_",
    "GITHUB_",
    "NODE_OPTIONS",
    "OLDPWD",
    "OPENCODE",
    "PI_",
    "QWEN",
    "XDG_",
)
"""Variables that would bring the user's own configuration, or another account, into a rollout."""


@dataclass
class NodeHarness:
    """Base of the adapters: ``prepare`` is each one's own."""

    context_window: int = 32768
    """Tokens of the model's window, prompt and reply together, as the harness is told."""
    max_output: int = 4096
    """Tokens of one reply at most, where the harness takes a limit."""

    name: str = ""
    environment: ClassVar[NodeEnvironment]

    def check(self) -> None:
        self.environment.check()

    def prepare(self, job: Job) -> Launch:
        raise NotImplementedError

    def collect(self, job: Job, finished: Finished) -> Outcome:
        return outcome_of(job, finished)

    def variables(self, job: Job, **own: str) -> dict[str, str]:
        """The whole environment of the process: the runner's without anybody's keys and settings, a home folder of the
        rollout's own, the right Node, and ``own``."""
        home = job.scratch / "home"
        home.mkdir(exist_ok=True)
        inherited = {
            name: value
            for name, value in clean_environment().items()
            if not name.startswith(FOREIGN_PREFIXES)
        }
        path = os.pathsep.join([str(self.environment.node_folder), inherited.get("PATH", os.defpath)])
        # PWD too: some believe it over the folder that they run in.
        places = {"PATH": path, "HOME": str(home), "PWD": str(job.workspace)}
        return {**inherited, **places, "NO_COLOR": "1", "CI": "1", "TERM": "dumb", **own}

    @property
    def program(self) -> str:
        return str(self.environment.program_path)


def root_of(job: Job) -> str:
    """The proxy's root, for clients that add ``/v1`` themselves."""
    return job.endpoint.base_url.removesuffix("/v1")


def write_json(path: Path, value: Any) -> Path:
    """Writes a configuration file, its folder included."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path
