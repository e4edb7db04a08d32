"""qwen-agent: its Assistant with two tools, one process per rollout, over chat completions as a stream.

Measured with 0.0.34: a random ``seed`` in each request. By default tools stand in the prompt and calls are parsed from
the text; the history holds the calls written anew. ``use_raw_api`` uses the API's tools.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.python import PythonEnvironment
from harness_adapters.python.base import DrivenLibrary

VERSION = "0.0.34"


@dataclass
class QwenAgent(DrivenLibrary):
    """Adapter: see the module."""

    environment: ClassVar[PythonEnvironment] = PythonEnvironment("qwen-agent", VERSION)
    driver: ClassVar[str] = "qwen_agent_agent"

    use_raw_api: bool = False
    """Whether tools are the API's, not text in the prompt."""
    name: str = "qwen-agent"
