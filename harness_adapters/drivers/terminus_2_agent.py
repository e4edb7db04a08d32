"""terminus-2, harbor's own agent, on this machine: it types into a tmux session, and the model writes keystrokes as JSON.

Harbor runs agents in containers; what this agent asks of one is to execute commands, so a class that executes them in
the workspace is enough. The tmux server is the rollout's own (its socket lies in the scratch folder) and ends with it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

from harbor.agents.terminus_2.terminus_2 import Terminus2
from harbor.environments.base import BaseEnvironment, ExecResult
from harbor.models.agent.context import AgentContext
from reporting import Job, Report, main


class Here(BaseEnvironment):
    """The workspace as an environment: only what the agent uses works."""

    def __init__(self, sockets: Path) -> None:
        # Not the base's: it wants a container's definition.
        self.session_id = "here"
        self.default_user = None
        self._sockets = sockets

    @staticmethod
    def type() -> str:
        return "here"

    def _validate_definition(self) -> None:
        pass

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run it with bash in the workspace, as the user that this process runs as."""
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-c",
            command,
            cwd=cwd,
            env={**os.environ, "TMUX_TMPDIR": str(self._sockets), **(env or {})},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        try:
            out, err = await asyncio.wait_for(process.communicate(), timeout_sec)
        except TimeoutError:
            process.kill()
            out, err = await process.communicate()
        return ExecResult(stdout=out.decode(), stderr=err.decode(), return_code=process.returncode or 0)

    async def start(self, force_build: bool) -> None:
        pass

    async def stop(self, delete: bool) -> None:
        await self.exec("tmux kill-server")

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        raise NotImplementedError

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        raise NotImplementedError

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        raise NotImplementedError

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        raise NotImplementedError


async def play(job: Job) -> Report:
    """One rollout."""
    sockets, logs = job.scratch / "tmux", job.scratch / "terminus"
    sockets.mkdir()
    logs.mkdir()
    window = job.settings["context_window"]
    agent = Terminus2(
        logs_dir=logs,
        model_name=f"openai/{job.model}",
        api_base=job.base_url,
        max_turns=job.settings["max_turns"],
        collect_rollout_details=job.settings["rollout_details"],
        record_terminal_session=False,
        suppress_max_turns_warning=True,
        model_info={
            "max_input_tokens": window,
            "max_output_tokens": window // 4,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
        },
    )
    environment, context = Here(sockets), AgentContext()
    try:
        await agent.setup(environment)
        await agent.run(job.prompt, environment, context)
    finally:
        await environment.stop(delete=True)
    data: dict[str, Any] = {"metadata": context.metadata}
    if job.settings["rollout_details"]:
        data["rollout_details"] = context.rollout_details
    return Report(data=data)


def run(job: Job) -> Report:
    return asyncio.run(play(job))


if __name__ == "__main__":
    main(run)
