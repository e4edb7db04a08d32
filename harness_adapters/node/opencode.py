"""OpenCode: ``opencode run``, over chat completions (streaming).

It asks for a title beside the task unless it is given one, and summarises its history into a new one when the window
is full. What it cannot do: sampling parameters other than the proxy's own, and requests without streaming.
Measured with 1.18.33.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.node import NodeEnvironment
from harness_adapters.node.base import NodeHarness
from harness_adapters.protocol import Job, Launch


@dataclass
class OpenCode(NodeHarness):
    """Adapter: see the module."""

    title: str | None = "task"
    """Of the session; null lets the model think of one: a side request, as users of OpenCode have it."""

    name: str = "opencode"
    environment: ClassVar[NodeEnvironment] = NodeEnvironment("opencode", "opencode-ai", "1.18.33", "opencode")

    def prepare(self, job: Job) -> Launch:
        model = {"limit": {"context": self.context_window, "output": self.max_output}, "tool_call": True}
        options = {"baseURL": job.endpoint.base_url, "apiKey": job.endpoint.api_key}
        config = {
            "provider": {
                "singletree": {
                    "npm": "@ai-sdk/openai-compatible",
                    "options": options,
                    "models": {job.endpoint.model: model},
                }
            },
            "permission": "allow",
            "autoupdate": False,
            "share": "disabled",
        }
        title = ["--title", self.title] if self.title else []
        return Launch(
            argv=[
                self.program,
                "run",
                *title,
                "--model",
                f"singletree/{job.endpoint.model}",
                "--",
                job.task.prompt,
            ],
            env=self.variables(
                job,
                OPENCODE_CONFIG_CONTENT=json.dumps(config),
                OPENCODE_DISABLE_AUTOUPDATE="1",
                OPENCODE_DISABLE_DEFAULT_PLUGINS="1",
                OPENCODE_DISABLE_LSP_DOWNLOAD="1",
                OPENCODE_DISABLE_MODELS_FETCH="1",
                OPENCODE_DISABLE_SHARE="1",
            ),
            cwd=job.workspace,
        )
