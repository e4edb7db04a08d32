"""Claude Code: ``claude -p``, over the Messages API (streaming): it speaks nothing else.

Its billing header inside the system prompt, its probe of the server, its title request and its beta fields are switched
off by its own variables. What it cannot do: end well when the server says that the window is full (it exits 1); it
summarises before that by the window that it is told. Measured with 2.1.332, which Node 20 runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.node import NodeEnvironment
from harness_adapters.node.base import NodeHarness, root_of
from harness_adapters.protocol import Job, Launch


@dataclass
class ClaudeCode(NodeHarness):
    """Adapter: see the module."""

    name: str = "claude-code"
    environment: ClassVar[NodeEnvironment] = NodeEnvironment(
        "claude-code", "@anthropic-ai/claude-code", "2.1.332", "claude"
    )

    def prepare(self, job: Job) -> Launch:
        model = job.endpoint.model
        return Launch(
            argv=[self.program, "-p", "--dangerously-skip-permissions", "--model", model],
            env=self.variables(
                job,
                ANTHROPIC_BASE_URL=root_of(job),
                ANTHROPIC_API_KEY=job.endpoint.api_key,
                ANTHROPIC_DEFAULT_HAIKU_MODEL=model,
                ANTHROPIC_DEFAULT_SONNET_MODEL=model,
                ANTHROPIC_DEFAULT_OPUS_MODEL=model,
                CLAUDE_CONFIG_DIR=str(job.scratch / "claude"),
                CLAUDE_CODE_ATTRIBUTION_HEADER="0",
                CLAUDE_CODE_DISABLE_EXPERIMENTAL_BETAS="1",
                CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
                CLAUDE_CODE_MAX_CONTEXT_TOKENS=str(self.context_window),
                CLAUDE_CODE_MAX_OUTPUT_TOKENS=str(self.max_output),
                DISABLE_AUTOUPDATER="1",
                DISABLE_TELEMETRY="1",
                IS_SANDBOX="1",
            ),
            cwd=job.workspace,
            stdin=job.task.prompt.encode(),
        )
