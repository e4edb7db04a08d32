"""langgraph: an agent of langchain's ``create_agent`` with two tools, one process per rollout.

Measured with 1.2.24 (langchain 1.5.2, langchain-openai 1.7.4): tool-call arguments come back re-spaced, reasoning does
not come back; a stream is asked for without usage.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from harness_adapters.environments.python import PythonEnvironment
from harness_adapters.python.base import DrivenLibrary

VERSION = "1.2.24"


@dataclass
class LangGraph(DrivenLibrary):
    """Adapter: see the module."""

    environment: ClassVar[PythonEnvironment] = PythonEnvironment("langgraph", VERSION)
    driver: ClassVar[str] = "langgraph_agent"

    api: Literal["chat", "responses"] = "chat"
    """Which of OpenAI's APIs it speaks."""
    streaming: bool = False
    system_prompt: str | None = None
    max_turns: int = 20
    """Model calls per rollout."""
    name: str = "langgraph"
