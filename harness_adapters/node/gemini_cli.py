"""Gemini CLI: ``gemini -p``, over ``streamGenerateContent``.

It takes its behaviour from the model's name, so it is told to ask for ``gemini-2.5-pro`` whatever the policy's model is
called; the proxy answers with the policy's. What it cannot do: be told its window, or a limit for replies.
Measured with 0.61.0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.node import NodeEnvironment
from harness_adapters.node.base import NodeHarness, root_of, write_json
from harness_adapters.protocol import Job, Launch

MODEL = "gemini-2.5-pro"


@dataclass
class GeminiCLI(NodeHarness):
    """Adapter: see the module."""

    name: str = "gemini-cli"
    environment: ClassVar[NodeEnvironment] = NodeEnvironment(
        "gemini-cli", "@google/gemini-cli", "0.61.0", "gemini"
    )

    def prepare(self, job: Job) -> Launch:
        write_json(
            job.scratch / "home" / ".gemini" / "settings.json",
            {
                "security": {"auth": {"selectedType": "gemini-api-key"}},
                "general": {"enableAutoUpdate": False, "enableAutoUpdateNotification": False},
                "privacy": {"usageStatisticsEnabled": False},
                "telemetry": {"enabled": False},
            },
        )
        return Launch(
            argv=[self.program, "--skip-trust", "--yolo", "-m", MODEL, "-p", job.task.prompt],
            env=self.variables(
                job,
                GEMINI_API_KEY=job.endpoint.api_key,
                GOOGLE_GEMINI_BASE_URL=root_of(job),
                GEMINI_TELEMETRY_ENABLED="false",
            ),
            cwd=job.workspace,
        )
