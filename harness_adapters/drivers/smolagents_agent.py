"""smolagents: its CodeAgent, which writes Python as text, or its ToolCallingAgent, over ``OpenAIModel``."""

from __future__ import annotations

from reporting import Job, Report, main
from smolagents import CodeAgent, LogLevel, OpenAIModel, ToolCallingAgent, tool
from smolagents.memory import ActionStep
from workspace_tools import run_command, write_file

KINDS = {"code": CodeAgent, "tool-calling": ToolCallingAgent}


def run(job: Job) -> Report:
    """One rollout."""
    model = OpenAIModel(model_id=job.model, api_base=job.base_url, api_key=job.api_key)
    agent = KINDS[job.settings["agent"]](
        tools=[tool(write_file), tool(run_command)],
        model=model,
        max_steps=job.settings["max_turns"],
        stream_outputs=job.settings["streaming"],
        verbosity_level=LogLevel.ERROR,
    )
    result = agent.run(job.prompt, return_full_result=True)
    steps = [step for step in agent.memory.steps if isinstance(step, ActionStep)]
    report = Report(
        final_text="" if result.output is None else str(result.output),
        tool_calls=[(call.name, call.arguments) for step in steps for call in step.tool_calls or []],
        data={"state": result.state},
    )
    if (
        result.state == "max_steps_error"
    ):  # it then asks the model for an answer without tools, and takes that
        report.failure, report.error = "agent", f"no final answer within {job.settings['max_turns']} turns"
    return report


if __name__ == "__main__":
    main(run)
