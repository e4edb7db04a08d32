"""pydantic-ai: the user's own agent, unmodified, in a warm worker.

``agent: "package.module:name"`` names one of:

- an ``Agent``: shared by all rollouts. It is run on the task's ``prompt``; if it declares a ``deps_type``, the task's
  payload is its ``deps``. Its model is replaced by the policy.
- a callable ``factory(task, base_url, api_key)``. It returns an ``Agent`` (run likewise; the policy is put in unless
  it has a model of its own), or an awaitable that does the whole rollout and gives pydantic-ai's run result, a string
  or a JSON object.

Either way a rollout gets a client and a model object of its own over shared connections. An agent per rollout costs
little more than a shared one; connections per rollout, which a factory that builds its own client may bring, cost 2.4
times the CPU (tests/harness_adapters/measure_construction.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from harness_adapters.installed import require
from harness_adapters.loading import load_object
from harness_adapters.protocol import Endpoint, ToolCall, WorkerRun
from harness_adapters.shared_client import make_anthropic_client, make_client

Api = Literal["chat", "responses", "messages"]

DISTRIBUTION = "pydantic-ai-slim"
PROVED_VERSION = "2.68.0"


@dataclass
class PydanticAI:
    """Adapter: see the module."""

    agent: str
    model_settings: dict[str, Any] = field(default_factory=dict)
    """pydantic-ai's ``ModelSettings`` for each run, e.g. ``max_tokens``."""
    api: Api = "chat"
    """How the model is called: OpenAI's chat completions or Responses, or Anthropic's Messages."""
    max_turns: int | None = None
    """Model calls per rollout (``UsageLimits.request_limit``); pydantic-ai's own default if null."""
    request_timeout_s: float = 300.0
    workers: int = 1
    any_version: bool = False
    name: str = "pydantic-ai"

    def check(self) -> None:
        require(DISTRIBUTION, PROVED_VERSION, any_version=self.any_version)

    def worker_spec(self) -> dict[str, Any]:
        return {"module": __name__, "settings": asdict(self)}


def build(settings: Mapping[str, Any]) -> WorkerRun:
    """In the worker: load the agent once; return the coroutine function that runs it on one task."""
    from pydantic_ai import Agent, UsageLimits, capture_run_messages

    target = load_object(settings["agent"], what="harness.agent")
    limits = UsageLimits(request_limit=settings["max_turns"]) if settings["max_turns"] is not None else None

    async def run_agent(agent: Agent[Any, Any], task: Mapping[str, Any], endpoint: Endpoint) -> Any:
        own_model = agent is not target and agent.model is not None
        return await agent.run(
            str(task.get("prompt", "")),
            model=None
            if own_model
            else policy_model(endpoint, settings["api"], settings["request_timeout_s"]),
            deps=dict(task) if agent.deps_type is not type(None) else None,
            model_settings=settings["model_settings"] or None,  # type: ignore[arg-type]
            usage_limits=limits,
        )

    async def run(task: Mapping[str, Any], endpoint: Endpoint) -> dict[str, Any]:
        with capture_run_messages() as messages:
            try:
                made = target
                if not isinstance(target, Agent):
                    made = target(dict(task), endpoint.base_url, endpoint.api_key)
                    made = await made if inspect.isawaitable(made) else made
                result = await run_agent(made, task, endpoint) if isinstance(made, Agent) else made
                return describe(result)
            except Exception as error:
                failure = classify(error)
                if failure is None:
                    raise
                calls = [asdict(call) for call in tool_calls(messages)]
                return {"failure": failure, "error": f"{type(error).__name__}: {error}", "tool_calls": calls}

    return run


def policy_model(endpoint: Endpoint, api: Api, timeout_s: float) -> Any:
    """pydantic-ai's model object for the policy, over the shared connections."""
    if api == "messages":
        from pydantic_ai.models.anthropic import AnthropicModel
        from pydantic_ai.providers.anthropic import AnthropicProvider

        client = make_anthropic_client(endpoint, timeout_s=timeout_s)
        return AnthropicModel(endpoint.model, provider=AnthropicProvider(anthropic_client=client))
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.openai import OpenAIProvider

    kind = OpenAIResponsesModel if api == "responses" else OpenAIChatModel
    return kind(
        endpoint.model, provider=OpenAIProvider(openai_client=make_client(endpoint, timeout_s=timeout_s))
    )


def describe(result: Any) -> dict[str, Any]:
    """Outcome fields of a finished run: pydantic-ai's run result, a string, or any JSON object."""
    from pydantic_ai.run import AgentRunResult
    from pydantic_core import to_json, to_jsonable_python

    if not isinstance(result, AgentRunResult):
        text = result if isinstance(result, str) else to_json(result).decode()
        return {
            "final_text": text,
            "data": {} if isinstance(result, str) else {"output": to_jsonable_python(result)},
        }
    output = result.output
    return {
        "final_text": output if isinstance(output, str) else to_json(output).decode(),
        "tool_calls": [asdict(call) for call in tool_calls(result.all_messages())],
        "data": {} if isinstance(output, str) else {"output": to_jsonable_python(output)},
    }


def tool_calls(messages: list[Any]) -> list[ToolCall]:
    """The calls that the model made, in order; arguments that are no JSON object stay as text."""
    from pydantic_ai.messages import ModelResponse, ToolCallPart

    calls = []
    for message in messages:
        if isinstance(message, ModelResponse):
            for part in message.parts:
                if isinstance(part, ToolCallPart):
                    try:
                        arguments: Any = part.args_as_dict(raise_if_invalid=True)
                    except (ValueError, AssertionError):
                        arguments = part.args
                    calls.append(ToolCall(part.tool_name, arguments))
    return calls


def classify(error: Exception) -> str | None:
    """Whose fault an exception of a run is; null: the user's code or the library, which the worker reports."""
    from pydantic_ai import exceptions

    if isinstance(error, exceptions.ModelContextWindowExceededError):
        return "agent"
    if isinstance(error, exceptions.ModelAPIError):
        return "upstream"
    if isinstance(error, (exceptions.UnexpectedModelBehavior, exceptions.UsageLimitExceeded)):
        return "agent"
    return None
