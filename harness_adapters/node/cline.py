"""Cline's command line: ``cline``, over chat completions (streaming).

It takes its provider only from its own store, so a rollout is two commands: ``cline auth``, which writes that store in
the scratch folder, then the task. What it cannot do: be told its window or a limit for replies.
Measured with 3.0.65.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.node import NodeEnvironment
from harness_adapters.node.base import NodeHarness
from harness_adapters.protocol import Job, Launch

TWO_STEPS = (
    '"$1" auth --data-dir "$2" -p openai-compatible -k "$CLINE_KEY" -m "$3" -b "$4" >"$2/auth.log" 2>&1 || '
    '{ cat "$2/auth.log" >&2; exit 1; }; unset CLINE_KEY; '
    'exec "$1" --data-dir "$2" --config "$2/config" -P openai-compatible -m "$3" "$5"'
)
"""Program, data folder, model, base URL, task: as arguments of a shell, so that nothing in them is interpreted."""


@dataclass
class Cline(NodeHarness):
    """Adapter: see the module."""

    name: str = "cline"
    environment: ClassVar[NodeEnvironment] = NodeEnvironment("cline", "cline", "3.0.65", "cline")

    def prepare(self, job: Job) -> Launch:
        data = job.scratch / "cline"
        data.mkdir()
        endpoint = job.endpoint
        words = [self.program, str(data), endpoint.model, endpoint.base_url, job.task.prompt]
        return Launch(
            argv=["/bin/sh", "-c", TWO_STEPS, "sh", *words],
            env=self.variables(job, CLINE_KEY=endpoint.api_key, CLINE_TELEMETRY_DISABLED="1"),
            cwd=job.workspace,
        )
