"""Qwen Code: ``qwen``, over chat completions (streaming).

``kind: qwen-code`` is the newest release, which brings a Node of its own (it needs 22 or newer); ``qwen-code-0.15`` is
the last one for Node 20. It runs sub-agents at the same time under one key and with no header to tell them apart. What
it cannot do: end well when the window is full (it exits 1), or be told its window other than by its settings file.
Measured with 0.24.4 and 0.15.10.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.node import NodeEnvironment
from harness_adapters.node.base import NodeHarness, write_json
from harness_adapters.protocol import Job, Launch


@dataclass
class QwenCode(NodeHarness):
    """Adapter: see the module."""

    name: str = "qwen-code"
    environment: ClassVar[NodeEnvironment] = NodeEnvironment(
        "qwen-code", "@qwen-code/qwen-code", "0.24.4", "qwen", node="24.21.0"
    )

    def prepare(self, job: Job) -> Launch:
        home = job.scratch / "home"
        write_json(
            home / ".qwen" / "settings.json",
            {
                "general": {"disableAutoUpdate": True, "disableUpdateNag": True, "enableAutoUpdate": False},
                "privacy": {"usageStatisticsEnabled": False},
                "telemetry": {"enabled": False},
                "model": {
                    "generationConfig": {
                        "contextWindowSize": self.context_window,
                        "samplingParams": {"max_tokens": self.max_output},
                    }
                },
            },
        )
        return Launch(
            argv=[self.program, "--yolo", "--auth-type", "openai", "-p", job.task.prompt],
            env=self.variables(
                job,
                OPENAI_BASE_URL=job.endpoint.base_url,
                OPENAI_API_KEY=job.endpoint.api_key,
                OPENAI_MODEL=job.endpoint.model,
            ),
            cwd=job.workspace,
        )


@dataclass
class OldQwenCode(QwenCode):
    """The last release that Node 20 runs."""

    name: str = "qwen-code-0.15"
    environment: ClassVar[NodeEnvironment] = NodeEnvironment(
        "qwen-code-0.15", "@qwen-code/qwen-code", "0.15.10", "qwen"
    )
