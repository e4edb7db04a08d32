"""What every driver does around its library: read the task, write down how it ended.

The report is a JSON object with fields of ``Outcome``. Whose fault an exception is, is told from the names of its
classes: drivers share no package in which those could be looked up.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

UPSTREAM_ERRORS = {
    "APIConnectionError",
    "APIError",
    "APIStatusError",
    "AuthenticationError",
    "InternalServerError",
    "RateLimitError",
    "ServiceUnavailableError",
}
"""Names that openai, anthropic and litellm give to a server that gives no answer; subclasses are found as well."""
AGENT_ERRORS = {"ContextWindowExceededError", "ContextWindowExceedError", "ContextLengthExceededError"}
"""The model's own doing: it wrote or read more than the window holds."""


@dataclass(frozen=True)
class Job:
    """What a driver is given."""

    prompt: str
    model: str
    base_url: str
    api_key: str
    settings: Mapping[str, Any]
    """The adapter's own settings."""
    scratch: Path
    """For files that are not the agent's."""


@dataclass
class Report:
    """What a driver gives back; see ``Outcome``."""

    final_text: str = ""
    tool_calls: list[tuple[str, Any]] = field(default_factory=list)
    failure: str | None = None
    error: str | None = None
    data: dict[str, Any] = field(default_factory=dict)


def main(run: Callable[[Job], Report]) -> None:
    """Run one rollout, write its report and exit: 0, or 1 if it failed."""
    target = Path(sys.argv[1])
    job = Job(
        prompt=sys.stdin.read(),
        model=os.environ["OPENAI_MODEL"],
        base_url=os.environ["OPENAI_BASE_URL"],
        api_key=os.environ["OPENAI_API_KEY"],
        settings=json.loads(sys.argv[2]),
        scratch=target.parent,
    )
    try:
        report = run(job)
    except Exception as error:
        traceback.print_exc()
        report = Report(failure=whose_fault(error), error=f"{type(error).__name__}: {error}"[:2000])
    calls = [{"name": name, "arguments": parsed(arguments)} for name, arguments in report.tool_calls]
    fields = {**report.__dict__, "tool_calls": calls}
    target.write_text(json.dumps(fields, default=str))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1 if report.failure else 0)  # a thread that a library left behind must not keep the process


def whose_fault(error: BaseException) -> str:
    """``agent``, ``upstream`` or ``error``, from the exception and what caused it."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        seen.append(cause)
        names = {kind.__name__ for kind in type(cause).__mro__}
        if names & AGENT_ERRORS or getattr(cause, "code", None) == "context_length_exceeded":
            return "agent"
        if names & UPSTREAM_ERRORS:
            return "upstream"
        cause = cause.__cause__ or cause.__context__
    return "error"


def parsed(arguments: Any) -> Any:
    """JSON text as what it says, anything else as it is."""
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments
