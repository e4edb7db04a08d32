"""langgraph: langchain's ``create_agent`` loop over ``ChatOpenAI``, by chat completions or by the Responses API."""

from __future__ import annotations

from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.errors import GraphRecursionError
from reporting import Job, Report, main
from workspace_tools import run_command, write_file


def run(job: Job) -> Report:
    """One rollout."""
    model = ChatOpenAI(
        model=job.model,
        base_url=job.base_url,
        api_key=job.api_key,  # type: ignore[arg-type]
        use_responses_api=job.settings["api"] == "responses",
        streaming=job.settings["streaming"],
    )
    agent = create_agent(
        model, tools=[tool(write_file), tool(run_command)], system_prompt=job.settings["system_prompt"]
    )
    # Each turn is two steps of the graph, model and tools.
    config = {"recursion_limit": 2 * job.settings["max_turns"]}
    messages = []
    try:
        for state in agent.stream(
            {"messages": [("user", job.prompt)]},
            config,  # type: ignore[arg-type]
            stream_mode="values",
        ):
            messages = state["messages"]
    except GraphRecursionError as error:
        return Report(tool_calls=calls(messages), failure="agent", error=str(error))
    return Report(final_text=messages[-1].text, tool_calls=calls(messages))


def calls(messages: list) -> list[tuple[str, object]]:
    """The calls that the model made, in order."""
    replies = [message for message in messages if isinstance(message, AIMessage)]
    return [(call["name"], call["args"]) for reply in replies for call in reply.tool_calls]


if __name__ == "__main__":
    main(run)
