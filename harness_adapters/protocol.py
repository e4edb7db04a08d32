"""What the runner and an adapter agree on.

A rollout goes: prepare a workspace -> environment and command -> run under limits -> collect the outcome. A harness is
one of two kinds, and an adapter implements the protocol of its kind:

- ``ProcessAdapter``: the harness is a program; each rollout is a process of its own.
- ``LibraryAdapter``: the harness is a library and the agent is the user's Python; rollouts share warm worker
  processes, because building an agent and its HTTP client costs more than a short rollout.

Adapters only look: they hold no key but the rollout's own, and talk to the control plane not at all.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, runtime_checkable

FailureKind = Literal["agent", "exit", "timeout", "upstream", "error", "stopped"]
"""Whose fault a failure is.

``agent``: the model's own behaviour ended it (invalid calls, too many turns, context full). ``exit``: the program
exited nonzero. ``timeout``: the runner's limit. ``upstream``: proxy or engine. ``error``: the harness or the user's
code raised. ``stopped``: the runner was stopped. Only the first three can ever be scored, and only on request [I4].
"""


@dataclass(frozen=True)
class Task:
    """One problem, as a task source yields it."""

    payload: dict[str, Any]
    """JSON object; ``prompt`` is what command-line harnesses are given, the rest is for agents and rewards."""
    id: str | None = None
    """The caller's id; null lets the proxy choose."""
    source: str | None = None
    """Where it comes from, for looking at."""

    @property
    def prompt(self) -> str:
        """The task's text; empty if the payload has none."""
        value = self.payload.get("prompt", "")
        return value if isinstance(value, str) else str(value)


@dataclass(frozen=True)
class Endpoint:
    """Where a rollout's model calls go."""

    base_url: str
    """OpenAI-compatible root, ``/v1`` included."""
    api_key: str
    """The rollout's own secret: opens its data plane and nothing else."""
    model: str
    """What the harness sends as ``model``."""


@dataclass(frozen=True)
class Job:
    """One rollout to run."""

    rollout_id: str
    task: Task
    endpoint: Endpoint
    workspace: Path
    """An empty (or templated) folder of the rollout's own; removed afterwards."""
    scratch: Path
    """Another, for what the agent should not find among its files; removed likewise."""
    timeout_s: float


@dataclass(frozen=True)
class Launch:
    """A command that runs one rollout."""

    argv: list[str]
    env: dict[str, str]
    """The whole environment; nothing is inherited."""
    cwd: Path
    stdin: bytes = b""


@dataclass(frozen=True)
class Finished:
    """How a launched process ended. Output is its last bytes, decoded with replacement."""

    exit_code: int | None
    """Null if the limit ended it; negative for a signal."""
    timed_out: bool
    stdout: str
    stderr: str
    duration_s: float


@dataclass(frozen=True)
class ToolCall:
    """One call that the model made, as the harness understood it."""

    name: str
    arguments: Any
    """Parsed JSON where it parses, else the text."""


@dataclass
class Outcome:
    """What a rollout came to: what reward functions see."""

    failure: FailureKind | None = None
    """Null: the harness ended as it should. That says nothing about the answer."""
    error: str | None = None
    """One line on the failure."""
    exit_code: int | None = None
    final_text: str = ""
    """The agent's last answer; a program's standard output."""
    tool_calls: list[ToolCall] = field(default_factory=list)
    """In order, where the harness tells."""
    stdout_tail: str = ""
    stderr_tail: str = ""
    duration_s: float = 0.0
    data: dict[str, Any] = field(default_factory=dict)
    """JSON that the harness adds: structured output, usage, submission."""
    workspace: Path | None = None
    """Still there while rewards are computed."""

    @property
    def succeeded(self) -> bool:
        return self.failure is None

    @property
    def timed_out(self) -> bool:
        return self.failure == "timeout"


@runtime_checkable
class ProcessAdapter(Protocol):
    """A harness that is a program."""

    name: str

    def check(self) -> None:
        """Raise ``HarnessMissing`` unless the harness can run here, before any rollout."""
        ...

    def prepare(self, job: Job) -> Launch:
        """Write what the harness needs into the workspace; return how to start it."""
        ...

    def collect(self, job: Job, finished: Finished) -> Outcome:
        """Read what the harness left."""
        ...


@runtime_checkable
class LibraryAdapter(Protocol):
    """A harness that is a library, run in warm workers."""

    name: str
    workers: int
    """Worker processes; each serves many rollouts at once."""

    def check(self) -> None:
        """Raise ``HarnessMissing`` unless the library can run here, before any rollout."""
        ...

    def worker_spec(self) -> dict[str, Any]:
        """JSON given to each worker at its start: ``module`` (of this package, having ``build``) and its settings."""
        ...


Adapter = ProcessAdapter | LibraryAdapter

WorkerRun = Callable[[Mapping[str, Any], Endpoint], Awaitable[dict[str, Any]]]
"""Inside a worker: (task payload, endpoint) -> fields of ``Outcome`` as JSON. Made by an adapter module's ``build``."""
