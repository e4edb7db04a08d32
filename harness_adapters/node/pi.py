"""pi: ``pi -p``, over chat completions (streaming): the lightest of the coding agents, four tools and 5 kB of prompt.

What it cannot do: run sub-agents. It summarises when the window that it is told of is nearly full.
Measured with 0.73.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.node import NodeEnvironment
from harness_adapters.node.base import NodeHarness, write_json
from harness_adapters.protocol import Job, Launch


@dataclass
class Pi(NodeHarness):
    """Adapter: see the module."""

    name: str = "pi"
    environment: ClassVar[NodeEnvironment] = NodeEnvironment(
        "pi", "@mariozechner/pi-coding-agent", "0.73.1", "pi"
    )

    def prepare(self, job: Job) -> Launch:
        folder = job.scratch / "pi"
        model = {
            "id": job.endpoint.model,
            "contextWindow": self.context_window,
            "maxTokens": self.max_output,
        }
        provider = {
            "baseUrl": job.endpoint.base_url,
            "api": "openai-completions",
            "apiKey": job.endpoint.api_key,
            "models": [model],
        }
        write_json(folder / "models.json", {"providers": {"singletree": provider}})
        return Launch(
            argv=[
                self.program,
                *("--provider", "singletree", "--model", job.endpoint.model, "--no-session", "-p"),
                job.task.prompt,
            ],
            env=self.variables(job, PI_OFFLINE="1", PI_TELEMETRY="0", PI_CODING_AGENT_DIR=str(folder)),
            cwd=job.workspace,
        )
