"""Any program that reads ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``.

The task reaches it three ways, to choose from: the placeholders ``{prompt}`` and ``{task_id}`` in its arguments, the
variables ``TASK_PROMPT``, ``TASK_ID`` and ``TASK_<FIELD>`` for the payload fields that ``pass_fields`` names, and
standard input. The payload as a whole is never handed over: it often holds the answer, and an agent with a shell reads
all that its process was given.
"""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness_adapters.environment import clean_environment, openai_environment
from harness_adapters.errors import ConfigError, HarnessMissing
from harness_adapters.protocol import Finished, Job, Launch, Outcome

LONGEST_VARIABLE = 100_000
"""Bytes; Linux refuses single environment strings above 128 KiB, so a longer prompt comes by standard input only."""


@dataclass
class Command:
    """Adapter: see the module."""

    argv: list[str]
    """Program and arguments; ``{prompt}``, ``{task_id}``, ``{model}`` and ``{workspace}`` are filled in."""
    stdin: Literal["prompt", "none"] = "none"
    """What the program reads from standard input."""
    env: dict[str, str] = field(default_factory=dict)
    """Added to the environment; the same placeholders are filled in."""
    pass_fields: list[str] = field(default_factory=list)
    """Payload fields that the agent may see, as ``TASK_<FIELD>``."""
    cwd: Literal["workspace", "here"] = "workspace"
    """Where it runs: in the rollout's own folder, or where the runner was started."""
    name: str = "command"

    def check(self) -> None:
        if not self.argv:
            raise ConfigError("harness.argv is empty; give the program to run, e.g. [python, my_agent.py]")
        if shutil.which(self.argv[0]) is None:
            raise HarnessMissing(
                f"program {self.argv[0]!r} is not on PATH; install it or give its whole path"
            )

    def prepare(self, job: Job) -> Launch:
        here = Path.cwd()
        task = job.task
        values = {
            "prompt": task.prompt,
            "task_id": task.id or "",
            "model": job.endpoint.model,
            "workspace": str(job.workspace),
        }
        env = {**clean_environment(), **openai_environment(job.endpoint), "TASK_ID": task.id or ""}
        if len(task.prompt.encode()) <= LONGEST_VARIABLE:
            env["TASK_PROMPT"] = task.prompt
        for name in self.pass_fields:
            if name in task.payload:
                env[f"TASK_{name.upper()}"] = as_text(task.payload[name])
        env.update({name: fill(value, values) for name, value in self.env.items()})
        program = shutil.which(self.argv[0])
        assert program is not None
        # A script named relative to where the runner was started must be found from the workspace too.
        arguments = [
            str(here / word) if self.cwd == "workspace" and is_local_file(word) else fill(word, values)
            for word in self.argv[1:]
        ]
        return Launch(
            argv=[str(here / program), *arguments],
            env=env,
            cwd=job.workspace if self.cwd == "workspace" else here,
            stdin=task.prompt.encode() if self.stdin == "prompt" else b"",
        )

    def collect(self, job: Job, finished: Finished) -> Outcome:
        return outcome_of(job, finished)


def outcome_of(job: Job, finished: Finished) -> Outcome:
    """The outcome of a program whose standard output is its answer."""
    outcome = Outcome(
        exit_code=finished.exit_code,
        final_text=finished.stdout.strip(),
        stdout_tail=finished.stdout,
        stderr_tail=finished.stderr,
        duration_s=finished.duration_s,
    )
    if finished.timed_out:
        outcome.failure, outcome.error = "timeout", f"ended after {job.timeout_s:g} s"
    elif finished.exit_code:
        outcome.failure = "exit"
        last = next((line for line in reversed(finished.stderr.splitlines()) if line.strip()), "")
        outcome.error = f"exit code {finished.exit_code}" + (f": {last.strip()[:500]}" if last else "")
    return outcome


def fill(template: str, values: dict[str, str]) -> str:
    """Replace ``{name}`` for the known names only, in one pass: other braces, and those of a prompt, stay."""
    return re.sub(r"\{(\w+)\}", lambda match: values.get(match[1], match[0]), template)


def is_local_file(word: str) -> bool:
    """Whether an argument names a file relative to the current folder."""
    try:
        return not Path(word).is_absolute() and Path(word).is_file()
    except (OSError, ValueError):
        return False


def as_text(value: Any) -> str:
    """Text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)
