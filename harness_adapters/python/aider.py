"""aider: its command, unmodified, one process per rollout, over chat completions as a stream.

The model has no tools: it writes edits as text, which aider applies and commits; the commit's message is a request of
its own, which never enters the conversation. Aider shows the files that it works on in front of the conversation, as
they are now, so that each applied edit changes the history behind it.

Measured with 0.86.2.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from typing import ClassVar

from harness_adapters.command import outcome_of
from harness_adapters.environments.python import PythonEnvironment
from harness_adapters.errors import HarnessMissing
from harness_adapters.protocol import Finished, Job, Launch, Outcome
from harness_adapters.python.base import harness_environment

VERSION = "0.86.2"
QUIET = (
    "--yes-always",
    "--no-check-update",
    "--analytics-disable",
    "--no-show-release-notes",
    "--no-show-model-warnings",
    "--no-detect-urls",
    "--no-pretty",
    "--no-fancy-input",
)
"""Asks nobody, and calls nobody but the model."""


@dataclass
class Aider:
    """Adapter: see the module."""

    environment: ClassVar[PythonEnvironment] = PythonEnvironment("aider", VERSION)

    files: list[str] = field(default_factory=list)
    """Files of the workspace that the conversation begins with."""
    args: list[str] = field(default_factory=list)
    """More of aider's own options, e.g. ``--edit-format diff``, ``--no-auto-commits``."""
    name: str = "aider"

    def check(self) -> None:
        self.environment.check()
        if shutil.which("git") is None:
            raise HarnessMissing("aider needs git, which is not on PATH; install git")

    def prepare(self, job: Job) -> Launch:
        history = [
            f"--{kind}-history-file={job.scratch / f'aider.{kind}.history'}" for kind in ("chat", "input")
        ]
        message = job.scratch / "message.txt"
        message.write_text(job.task.prompt)
        return Launch(
            argv=[
                str(self.environment.program("aider")),
                "--model",
                f"openai/{job.endpoint.model}",
                "--message-file",
                str(message),
                *QUIET,
                *history,
                *self.args,
                *self.files,
            ],
            env=harness_environment(job, self.environment),
            cwd=job.workspace,
        )

    def collect(self, job: Job, finished: Finished) -> Outcome:
        return outcome_of(job, finished)
