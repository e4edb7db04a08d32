"""openai-agents: the user's own agent, unmodified, in a warm worker, over chat completions or the Responses API.

``agent: "package.module:name"`` names one of:

- an ``Agent``: shared by all rollouts. It is run on the task's ``prompt`` with the task's payload as its context
  (``RunContextWrapper.context``). Its model, and that of the agents it hands over to, is replaced by the policy.
- a callable ``factory(task, base_url, api_key)``. It returns an ``Agent`` (run likewise), or an awaitable that does
  the whole rollout and gives the library's run result, a string or a JSON object.

Tracing is switched off: it would send transcripts to api.openai.com.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from harness_adapters.installed import require
from harness_adapters.loading import load_object
from harness_adapters.protocol import Endpoint, ToolCall, WorkerRun
from harness_adapters.shared_client import make_client

DISTRIBUTION = "openai-agents"
PROVED_VERSION = "0.24.0"


@dataclass
class OpenAIAgents:
    """Adapter: see the module."""

    agent: str
    model_settings: dict[str, Any] = field(default_factory=dict)
    """The library's ``ModelSettings`` for each run, e.g. ``max_tokens``."""
    api: Literal["chat", "responses"] = "chat"
    """Which of OpenAI's APIs the model is called by."""
    max_turns: int = 10
    """Model calls per rollout."""
    request_timeout_s: float = 300.0
    workers: int = 1
    any_version: bool = False
    name: str = "openai-agents"

    def check(self) -> None:
        require(DISTRIBUTION, PROVED_VERSION, any_version=self.any_version)

    def worker_spec(self) -> dict[str, Any]:
        return {"module": __name__, "settings": asdict(self)}


def build(settings: Mapping[str, Any]) -> WorkerRun:
    """In the worker: load the agent once; return the coroutine function that runs it on one task."""
    from agents import Agent, ModelSettings, OpenAIProvider, RunConfig, Runner, set_tracing_disabled

    set_tracing_disabled(True)
    target = load_object(settings["agent"], what="harness.agent")
    responses = settings["api"] == "responses"
    model_settings = ModelSettings(**settings["model_settings"]) if settings["model_settings"] else None

    def run_config(endpoint: Endpoint) -> RunConfig:
        client = make_client(endpoint, timeout_s=settings["request_timeout_s"])
        return RunConfig(
            # A model instance, since the provider would cut "a/b" names at the slash.
            model=OpenAIProvider(openai_client=client, use_responses=responses).get_model(endpoint.model),
            model_settings=model_settings,
            tracing_disabled=True,
        )

    async def run(task: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
        try:
            made = target
            if not isinstance(target, Agent):
                made = target(dict(task), endpoint.base_url, endpoint.api_key)
                made = await made if inspect.isawaitable(made) else made
            if isinstance(made, Agent):
                made = await Runner.run(
                    made,
                    str(task.get("prompt", "")),
                    context=dict(task),
                    max_turns=settings["max_turns"],
                    run_config=run_config(endpoint),
                )
            return describe(made)
        except Exception as error:
            failure = classify(error)
            if failure is None:
                raise
            items = getattr(getattr(error, "run_data", None), "new_items", [])
            calls = [asdict(call) for call in tool_calls(items)]
            return {"failure": failure, "error": f"{type(error).__name__}: {error}", "tool_calls": calls}

    return run


def describe(result: Any) -> dict[str, Any]:
    """Outcome fields of a finished run: the library's run result, a string, or any JSON object."""
    from agents.result import RunResultBase
    from pydantic_core import to_json, to_jsonable_python

    output = result.final_output if isinstance(result, RunResultBase) else result
    fields: dict[str, Any] = {"final_text": output if isinstance(output, str) else to_json(output).decode()}
    if not isinstance(output, str):
        fields["data"] = {"output": to_jsonable_python(output)}
    if isinstance(result, RunResultBase):
        fields["tool_calls"] = [asdict(call) for call in tool_calls(result.new_items)]
    return fields


def tool_calls(items: list[Any]) -> list[ToolCall]:
    """The calls that the model made, in order; arguments that are no JSON stay as text."""
    from agents.items import ToolCallItem

    calls = []
    for item in items:
        if isinstance(item, ToolCallItem):
            text = getattr(item.raw_item, "arguments", "")
            try:
                arguments: Any = json.loads(text)
            except (TypeError, ValueError):
                arguments = text
            calls.append(ToolCall(str(getattr(item.raw_item, "name", "")), arguments))
    return calls


def classify(error: Exception) -> str | None:
    """Whose fault an exception of a run is; null: the user's code or the library, which the worker reports."""
    import openai
    from agents import exceptions

    if isinstance(error, openai.BadRequestError) and error.code == "context_length_exceeded":
        return "agent"
    if isinstance(error, (openai.APIError, exceptions.ModelTimeoutError)):
        return "upstream"
    if isinstance(
        error, (exceptions.MaxTurnsExceeded, exceptions.ModelBehaviorError, exceptions.ModelRefusalError)
    ):
        return "agent"
    return None
