"""openhands-sdk: its Agent with its own terminal and file editor, one process per rollout.

Measured with 1.58.2: chat completions over litellm, not streaming, with ``reasoning_effort`` and ``prompt_cache_key``;
contents are lists of parts. With ``native_tool_calling`` off, tools stand in the prompt and the model is stopped at
"</function".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.python import PythonEnvironment
from harness_adapters.python.base import DrivenLibrary

VERSION = "1.58.2"


@dataclass
class OpenHandsSDK(DrivenLibrary):
    """Adapter: see the module."""

    environment: ClassVar[PythonEnvironment] = PythonEnvironment("openhands-sdk", VERSION, python="3.12")
    driver: ClassVar[str] = "openhands_sdk_agent"

    native_tool_calling: bool = True
    """Whether tools are the API's, not text in the prompt."""
    max_turns: int = 50
    """Model calls per rollout."""
    context_window: int = 32768
    """Tokens of the model's window, as the library is told."""
    name: str = "openhands-sdk"
