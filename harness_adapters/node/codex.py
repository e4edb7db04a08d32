"""Codex: ``codex exec``, over the Responses API (streaming): it speaks nothing else.

It is given a provider of its own, since the built-in one tries a WebSocket first, and a model name that it does not
know, since names that it knows change its tools. What it cannot do: end well when the window is full (it exits 1), or
take a limit for replies. Measured with 0.171.0.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.node import NodeEnvironment
from harness_adapters.node.base import NodeHarness
from harness_adapters.protocol import Finished, Job, Launch, Outcome

KEY_VARIABLE = "SINGLETREE_ROLLOUT_KEY"


@dataclass
class Codex(NodeHarness):
    """Adapter: see the module."""

    name: str = "codex"
    environment: ClassVar[NodeEnvironment] = NodeEnvironment("codex", "@openai/codex", "0.171.0", "codex")

    def prepare(self, job: Job) -> Launch:
        home = job.scratch / "codex"
        home.mkdir()
        provider = "model_providers.singletree"
        settings = {
            "model_provider": "singletree",
            "model": job.endpoint.model,
            "model_context_window": self.context_window,
            f"{provider}.name": "singletree",
            f"{provider}.base_url": job.endpoint.base_url,
            f"{provider}.env_key": KEY_VARIABLE,
            f"{provider}.wire_api": "responses",
            "analytics.enabled": False,
            "check_for_update_on_startup": False,
            "web_search": "disabled",
        }
        options = [word for name, value in settings.items() for word in ("-c", f"{name}={json.dumps(value)}")]
        return Launch(
            argv=[
                *(
                    self.program,
                    "exec",
                    "--skip-git-repo-check",
                    "--dangerously-bypass-approvals-and-sandbox",
                ),
                *options,
                *("--output-last-message", str(job.scratch / "answer.txt"), "-"),
            ],
            env=self.variables(job, CODEX_HOME=str(home), **{KEY_VARIABLE: job.endpoint.api_key}),
            cwd=job.workspace,
            stdin=job.task.prompt.encode(),
        )

    def collect(self, job: Job, finished: Finished) -> Outcome:
        outcome = super().collect(job, finished)
        answer = job.scratch / "answer.txt"
        outcome.final_text = answer.read_text().strip() if answer.is_file() else ""
        return outcome
