"""GitHub Copilot CLI: ``copilot -p`` against a provider of one's own, over chat completions (streaming), offline.

What it cannot do: be told its window. Measured with 1.0.102.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.node import NodeEnvironment
from harness_adapters.node.base import NodeHarness
from harness_adapters.protocol import Job, Launch


@dataclass
class Copilot(NodeHarness):
    """Adapter: see the module."""

    name: str = "copilot"
    environment: ClassVar[NodeEnvironment] = NodeEnvironment(
        "copilot", "@github/copilot", "1.0.102", "copilot"
    )

    def prepare(self, job: Job) -> Launch:
        return Launch(
            argv=[self.program, "--silent", "--no-auto-update", "--allow-all", "-p", job.task.prompt],
            env=self.variables(
                job,
                COPILOT_OFFLINE="true",
                COPILOT_PROVIDER_BASE_URL=job.endpoint.base_url,
                COPILOT_PROVIDER_API_KEY=job.endpoint.api_key,
                COPILOT_MODEL=job.endpoint.model,
                COPILOT_AUTO_UPDATE="false",
                # It unpacks itself before it starts, which takes seconds: once, not for each rollout.
                COPILOT_PKG_CACHE_HOME=str(self.environment.folder / "unpacked"),
                COPILOT_HOME=str(job.scratch / "copilot"),
            ),
            cwd=job.workspace,
        )
