"""qwen-agent: its Assistant, with tools written into the prompt and parsed from text, or as the API's own tools."""

from __future__ import annotations

import json
from typing import Any

from qwen_agent.agents import Assistant
from qwen_agent.tools.base import BaseTool
from reporting import Job, Report, main
from workspace_tools import run_command, write_file


class WriteFile(BaseTool):
    """``write_file`` as this library describes tools."""

    name = "write_file"
    description = "Write a file in the workspace, replacing what was there."
    parameters = {  # noqa: RUF012 (the library's own form)
        "type": "object",
        "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
        "required": ["path", "content"],
    }

    def call(self, params: str | dict, **_: Any) -> str:
        """One call."""
        arguments = self._verify_json_format_args(params)
        return write_file(arguments["path"], arguments["content"])


class RunCommand(BaseTool):
    """``run_command`` as this library describes tools."""

    name = "run_command"
    description = "Run a shell command in the workspace and return what it prints."
    parameters = {  # noqa: RUF012 (the library's own form)
        "type": "object",
        "properties": {"command": {"type": "string"}},
        "required": ["command"],
    }

    def call(self, params: str | dict, **_: Any) -> str:
        """One call."""
        return run_command(self._verify_json_format_args(params)["command"])


def run(job: Job) -> Report:
    """One rollout."""
    llm = {
        "model": job.model,
        "model_type": "oai",
        "model_server": job.base_url,
        "api_key": job.api_key,
        "generate_cfg": {"use_raw_api": job.settings["use_raw_api"]},
    }
    agent = Assistant(llm=llm, function_list=[WriteFile(), RunCommand()])
    *_, messages = agent.run(
        [{"role": "user", "content": job.prompt}]
    )  # each of them is the whole run so far
    called = [message["function_call"] for message in messages if message.get("function_call")]
    last = messages[-1].get("content", "") if messages else ""
    return Report(
        final_text=last if isinstance(last, str) else json.dumps(last),
        tool_calls=[(call["name"], call["arguments"]) for call in called],
    )


if __name__ == "__main__":
    main(run)
