"""openhands-sdk: its Agent with its own terminal and file editor, in the workspace, over litellm."""

from __future__ import annotations

from pathlib import Path

from openhands.sdk import LLM, Agent, Conversation, Tool
from openhands.sdk.conversation.state import ConversationExecutionStatus
from openhands.sdk.event import ActionEvent, MessageEvent
from openhands.tools.file_editor import FileEditorTool
from openhands.tools.terminal import TerminalTool
from pydantic import SecretStr
from reporting import Job, Report, main


def run(job: Job) -> Report:
    """One rollout."""
    llm = LLM(
        usage_id="agent",
        model=f"openai/{job.model}",
        base_url=job.base_url,
        api_key=SecretStr(job.api_key),
        native_tool_calling=job.settings["native_tool_calling"],
        max_input_tokens=job.settings["context_window"],
        num_retries=2,
    )
    agent = Agent(llm=llm, tools=[Tool(name=TerminalTool.name), Tool(name=FileEditorTool.name)])
    conversation = Conversation(
        agent=agent,
        workspace=str(Path.cwd()),
        max_iteration_per_run=job.settings["max_turns"],
        visualizer=None,
    )
    conversation.send_message(job.prompt)
    conversation.run()
    events = list(conversation.state.events)
    actions = [event for event in events if isinstance(event, ActionEvent)]
    report = Report(
        final_text=final_text(events),
        tool_calls=[(event.tool_name, event.tool_call.arguments) for event in actions],
        data={"status": str(conversation.state.execution_status)},
    )
    if conversation.state.execution_status != ConversationExecutionStatus.FINISHED:
        report.failure, report.error = "agent", f"ended as {report.data['status']}"
    conversation.close()
    return report


def final_text(events: list) -> str:
    """What the agent said last: a message, or what it called its tool ``finish`` with."""
    for event in reversed(events):
        if isinstance(event, ActionEvent) and event.tool_name == "finish":
            return str(getattr(event.action, "message", ""))
        if isinstance(event, MessageEvent) and event.source == "agent":
            return "".join(getattr(part, "text", "") for part in event.llm_message.content)
    return ""


if __name__ == "__main__":
    main(run)
