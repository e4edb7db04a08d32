"""Makes adapter, task source and reward function from their configuration, and refuses what cannot work."""

from __future__ import annotations

from collections.abc import Iterable

from harness_adapters import config
from harness_adapters.errors import ConfigError
from harness_adapters.protocol import Adapter, Outcome, Task
from harness_adapters.rewards import RewardFunction
from harness_adapters.tasks import TaskSource


def make_adapter(harness: config.Harness) -> Adapter:
    """The adapter, checked: its harness is installed at the proved version."""
    adapter = unchecked_adapter(harness)
    adapter.check()
    return adapter


def unchecked_adapter(harness: config.Harness) -> Adapter:
    settings = harness.model_dump(exclude={"kind", "workspace"})
    match harness:
        case config.PydanticAIHarness():
            from harness_adapters.pydantic_ai import PydanticAI

            return PydanticAI(**settings)
        case config.OpenAIAgentsHarness():
            from harness_adapters.openai_agents import OpenAIAgents

            return OpenAIAgents(**settings)
        case config.MiniSWEAgentHarness():
            from harness_adapters.mini_swe_agent import MiniSWEAgent

            return MiniSWEAgent(**settings)
        case config.NodeHarness():
            from harness_adapters.node.table import NODE_HARNESSES

            return NODE_HARNESSES[harness.kind](**settings)
        case config.PythonHarness():
            from harness_adapters.python.table import PYTHON_HARNESSES

            try:
                return PYTHON_HARNESSES[harness.kind](**harness.settings)
            except TypeError as error:
                raise ConfigError(f"harness.settings of {harness.kind}: {error}") from None
        case config.CommandHarness():
            from harness_adapters.command import Command

            return Command(**settings)


def make_tasks(tasks: config.Tasks) -> TaskSource:
    """The task source; what can be read is read now."""
    match tasks:
        case config.JsonlTasks():
            from harness_adapters.tasks.jsonl import open_jsonl

            return open_jsonl(tasks.path, shuffle_seed=tasks.shuffle_seed)
        case config.FunctionTasks():
            from harness_adapters.tasks.function import open_function

            return open_function(tasks.function, tasks.args)
        case config.ReasoningGymTasks():
            from harness_adapters.tasks.reasoning_gym import open_reasoning_gym

            return open_reasoning_gym(tasks.dataset, seed=tasks.seed, size=tasks.size, config=tasks.config)
        case config.InlineTasks():
            from harness_adapters.tasks.parse import task_from

            found: list[Task] = [task_from(value, where=f"tasks[{i}]") for i, value in enumerate(tasks.tasks)]
            if not found:
                raise ConfigError("tasks.tasks is empty")
            return lambda _epoch: found


def make_reward(reward: config.Reward) -> RewardFunction:
    """The reward function."""
    match reward:
        case config.FunctionReward():
            from harness_adapters.rewards.function import function_reward

            return function_reward(reward.function, timeout_s=reward.timeout_s)
        case config.TextReward():
            from harness_adapters.rewards.text import text_reward

            return text_reward(reward.kind, field=reward.field, ignore_case=reward.ignore_case)
        case config.CommandReward():
            from harness_adapters.rewards.command import command_reward

            return command_reward(reward.argv, timeout_s=reward.timeout_s)
        case config.ExitCodeReward():
            from harness_adapters.rewards.command import exit_code_reward

            return exit_code_reward()
        case config.ReasoningGymReward():
            from harness_adapters.rewards.reasoning_gym import reasoning_gym_reward

            return reasoning_gym_reward()
        case config.NoReward():
            return no_reward


async def no_reward(task: Task, outcome: Outcome) -> dict[str, float]:
    """Leaves the reward pending."""
    return {}


def all_epochs(source: TaskSource, epochs: int | None) -> Iterable[Task]:
    """The tasks of ``epochs`` epochs (null: for ever), in order. Raises ``ConfigError`` if the first is empty."""
    number = 0
    while epochs is None or number < epochs:
        seen = False
        for task in source(number):
            seen = True
            yield task
        if not seen:
            raise ConfigError("the task source yields no task")
        number += 1
