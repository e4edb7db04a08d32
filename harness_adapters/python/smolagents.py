"""smolagents: a CodeAgent or a ToolCallingAgent with two tools, one process per rollout.

Measured with 1.26.0: the CodeAgent has no tools on the wire; it stops the model at "Observation:", "Calling tools:" and
"</code>" and writes its own words into the assistant's messages (the closing tag, then the code again as "Calling
tools: [...]"), which the proxy's matching knows and looks past. The ToolCallingAgent forces a tool call
each turn (``tool_choice: "required"``), which makes its calls untrainable, and writes calls into the history as text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from harness_adapters.environments.python import PythonEnvironment
from harness_adapters.python.base import DrivenLibrary

VERSION = "1.26.0"


@dataclass
class SmolAgents(DrivenLibrary):
    """Adapter: see the module."""

    environment: ClassVar[PythonEnvironment] = PythonEnvironment("smolagents", VERSION)
    driver: ClassVar[str] = "smolagents_agent"

    agent: Literal["code", "tool-calling"] = "code"
    """How the model acts: by writing Python, or by tool calls."""
    streaming: bool = False
    max_turns: int = 20
    """Model calls per rollout."""
    name: str = "smolagents"
