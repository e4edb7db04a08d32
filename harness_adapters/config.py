"""The configuration of a run: what ``singletree run config.yaml`` reads. Unknown keys and kinds are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from harness_adapters.errors import ConfigError


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid")


class PydanticAIHarness(Strict):
    """pydantic-ai: the user's own agent in warm workers."""

    kind: Literal["pydantic-ai"]
    agent: str
    """``package.module:name`` of an ``Agent``, or of a ``factory(task, base_url, api_key)``."""
    model_settings: dict[str, Any] = {}
    """pydantic-ai's ``ModelSettings``, e.g. ``max_tokens``."""
    api: Literal["chat", "responses", "messages"] = "chat"
    """How the model is called: OpenAI's chat completions or Responses, or Anthropic's Messages."""
    max_turns: int | None = Field(default=None, ge=1)
    """Model calls per rollout."""
    request_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for one model call."""
    workers: int = Field(default=1, ge=1)
    """Worker processes; one uses 12 to 15 % of a core at 32 rollouts at once."""
    any_version: bool = False
    """Go on with another version of the library than the adapter was proved with."""


class OpenAIAgentsHarness(Strict):
    """openai-agents: the user's own agent in warm workers."""

    kind: Literal["openai-agents"]
    agent: str
    """``package.module:name`` of an ``Agent``, or of a ``factory(task, base_url, api_key)``."""
    model_settings: dict[str, Any] = {}
    """openai-agents' ``ModelSettings``, e.g. ``max_tokens``."""
    api: Literal["chat", "responses"] = "chat"
    """Which of OpenAI's APIs the model is called by."""
    max_turns: int = Field(default=10, ge=1)
    """Model calls per rollout (the library's default)."""
    request_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for one model call."""
    workers: int = Field(default=1, ge=1)
    """Worker processes."""
    any_version: bool = False
    """Go on with another version of the library than the adapter was proved with."""


class MiniSWEAgentHarness(Strict):
    """mini-swe-agent: its ``mini`` command, one process per rollout."""

    kind: Literal["mini-swe-agent"]
    config: list[str] = ["mini.yaml"]
    """mini's own ``-c`` values: its config files and ``key=value`` pairs."""
    step_limit: int = Field(default=0, ge=0)
    """Model calls per rollout; 0 is no limit."""
    workspace: Path | None = None
    """Folder copied into each rollout's workspace, where the agent works."""
    any_version: bool = False
    """Go on with another version than the adapter was proved with."""


class NodeHarness(Strict):
    """A coding agent that is a Node program: its own command, one process per rollout, in an environment of its own
    (``python -m harness_adapters.environments KIND`` installs it)."""

    kind: Literal[
        "claude-code",
        "cline",
        "codex",
        "copilot",
        "gemini-cli",
        "opencode",
        "pi",
        "qwen-code",
        "qwen-code-0.15",
    ]
    context_window: int = Field(default=32768, ge=1)
    """Tokens of the model's window, as the harness is told."""
    max_output: int = Field(default=4096, ge=1)
    """Tokens of one reply at most, where the harness takes a limit."""
    workspace: Path | None = None
    """Folder copied into each rollout's workspace, where the agent works."""


class PythonHarness(Strict):
    """A harness from PyPI in an environment of its own (``python -m harness_adapters.environments KIND`` installs it),
    one process per rollout: aider, or an agent of the library with a shell and a file tool."""

    kind: Literal["aider", "langgraph", "openhands-sdk", "qwen-agent", "smolagents", "terminus-2"]
    settings: dict[str, Any] = {}
    """Fields of the harness's adapter, see its module in ``harness_adapters/python``."""
    workspace: Path | None = None
    """Folder copied into each rollout's workspace, where the agent works."""


class CommandHarness(Strict):
    """Any program that reads ``OPENAI_BASE_URL`` and ``OPENAI_API_KEY``."""

    kind: Literal["command"]
    argv: list[str]
    """Program and arguments; ``{prompt}``, ``{task_id}``, ``{model}`` and ``{workspace}`` are filled in."""
    stdin: Literal["prompt", "none"] = "none"
    """What the program reads from standard input."""
    env: dict[str, str] = {}
    """Added to its environment."""
    pass_fields: list[str] = []
    """Payload fields that the agent may see, as ``TASK_<FIELD>``."""
    cwd: Literal["workspace", "here"] = "workspace"
    """Where it runs."""
    workspace: Path | None = None
    """Folder copied into each rollout's workspace."""


class JsonlTasks(Strict):
    """One JSON object per line."""

    kind: Literal["jsonl"]
    path: Path
    """The file."""
    shuffle_seed: int | None = None
    """Shuffle each epoch by this seed; null keeps the file's order."""


class FunctionTasks(Strict):
    """The user's own Python."""

    kind: Literal["function"]
    function: str
    """``module:function``, called once per epoch; yields JSON objects."""
    args: dict[str, Any] = {}
    """Its keyword arguments; ``epoch`` is added if it takes that."""


class InlineTasks(Strict):
    """Tasks in the configuration itself."""

    kind: Literal["inline"]
    tasks: list[dict[str, Any] | str]
    """Objects with at least ``prompt``, or prompts."""


class ReasoningGymTasks(Strict):
    """reasoning-gym's procedural generators."""

    kind: Literal["reasoning-gym"]
    dataset: str
    """The generator's name, e.g. ``chain_sum``."""
    seed: int = 0
    """Seed of the first epoch; each later one adds 1."""
    size: int = Field(default=100, ge=1)
    """Tasks per epoch."""
    config: dict[str, Any] = {}
    """The generator's own settings."""


class RewardBase(Strict):
    score_failures: list[Literal["agent", "exit", "timeout"]] = []
    """Kinds of failed rollout that are rewarded too. By default none: a missing reward is not zero."""
    failure_reward: float | None = Field(default=None, allow_inf_nan=False)
    """The reward of those; null asks the reward function."""

    @model_validator(mode="after")
    def _has_effect(self) -> Self:
        if self.failure_reward is not None and not self.score_failures:
            raise ValueError(
                "failure_reward has no effect without score_failures: say which failures it is for"
            )
        return self


class FunctionReward(RewardBase):
    """The user's own Python."""

    kind: Literal["function"]
    function: str
    """``module:function``, called with (task payload, outcome)."""
    timeout_s: float = Field(default=60.0, gt=0)
    """Seconds for one reward."""


class TextReward(RewardBase):
    """1 if the last answer is, or contains, a text of the task."""

    kind: Literal["exact", "contains"]
    field: str = "answer"
    """Payload field that holds the text, or a list of accepted ones."""
    ignore_case: bool = False


class CommandReward(RewardBase):
    """1 if a program exits 0 in the workspace."""

    kind: Literal["command"]
    argv: list[str] = Field(min_length=1)
    """Program and arguments."""
    timeout_s: float = Field(default=120.0, gt=0)
    """Seconds for one check."""


class ExitCodeReward(RewardBase):
    """1 if the harness exits 0."""

    kind: Literal["exit-code"]


class ReasoningGymReward(RewardBase):
    """reasoning-gym's own scorer."""

    kind: Literal["reasoning-gym"]


class NoReward(RewardBase):
    """None now: it is posted later, or the rollouts are only recorded."""

    kind: Literal["none"]


Harness = Annotated[
    PydanticAIHarness
    | OpenAIAgentsHarness
    | MiniSWEAgentHarness
    | NodeHarness
    | PythonHarness
    | CommandHarness,
    Field(discriminator="kind"),
]
Tasks = Annotated[JsonlTasks | FunctionTasks | InlineTasks | ReasoningGymTasks, Field(discriminator="kind")]
Reward = Annotated[
    FunctionReward | TextReward | CommandReward | ExitCodeReward | ReasoningGymReward | NoReward,
    Field(discriminator="kind"),
]


class RunConfig(Strict):
    """One run: a harness on tasks, rewarded."""

    proxy: str = "http://127.0.0.1:8700"
    """The proxy's root URL."""
    key: str | None = None
    """Runner key; better given as SINGLETREE_KEY or by ``keys_file``."""
    keys_file: Path | None = None
    """The proxy's keys.json; its runner key is used."""
    policy: str
    """The policy whose model answers."""
    purpose: Literal["train", "eval"] = "train"
    """The trainer never sees eval."""
    harness: Harness
    tasks: Tasks
    reward: Reward
    group_size: int | None = Field(default=None, ge=1)
    """Rollouts per task; null takes the policy's for training and 1 for evaluation."""
    concurrency: int = Field(default=8, ge=1)
    """Rollouts at once."""
    timeout_s: float = Field(default=300.0, gt=0)
    """Seconds for one rollout."""
    deadline_s: float = Field(default=900.0, gt=0)
    """Seconds after which a group settles with the rewards that it has."""
    epochs: int | None = Field(default=1, ge=1)
    """Times through the tasks; null: until another limit, or until stopped."""
    limit: int | None = Field(default=None, ge=1)
    """Tasks at most."""
    rollouts: int | None = Field(default=None, ge=1)
    """Rollouts at most, in whole groups."""
    steps: int | None = Field(default=None, ge=1)
    """End once the policy's version has risen by this many."""
    workspaces: Path | None = None
    """Where workspaces are made; null is the system's temporary folder."""
    keep_workspaces: bool = False
    """Leave them, for looking at."""

    @field_validator("proxy")
    @classmethod
    def _is_a_url(cls, proxy: str) -> str:
        try:
            parts = urlsplit(proxy)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is none, brackets that do not close
            usable = False
        if not usable:
            raise ValueError(f"{proxy!r} is no http URL; give the proxy's root, e.g. http://127.0.0.1:8700")
        return proxy.rstrip("/").removesuffix("/v1")

    @model_validator(mode="after")
    def deadline_is_after_timeout(self) -> RunConfig:
        if self.deadline_s < self.timeout_s:
            raise ValueError("deadline_s must be at least timeout_s: a group must outlive its rollouts")
        return self


def parse_config(values: dict[str, Any], *, where: str) -> RunConfig:
    """Validate; raises ``ConfigError`` with one line that names each wrong key."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        faults = []
        for fault in error.errors(include_url=False):
            path = ".".join(str(part) for part in fault["loc"]) or "config"
            faults.append(f"{path}: {fault['msg']}")
        raise ConfigError(f"{where}: {'; '.join(faults)}") from None


def read_config(path: Path) -> dict[str, Any]:
    """The YAML file as a dict. Raises ``ConfigError``."""
    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} must hold a mapping (proxy, policy, harness, tasks, reward)")
    return values
