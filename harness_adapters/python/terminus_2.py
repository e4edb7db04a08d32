"""terminus-2, the agent of harbor, without harbor's containers: it works in the workspace, by a tmux session of its own.

Measured with harbor 0.26.0: chat completions over litellm, not streaming; the model writes JSON as plain text and has
to say twice that the task is complete. It can ask for token ids and logprobs and keeps them itself
(``rollout_details``). Above a part of the window it has the model summarise the conversation, which begins a new one.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import ClassVar

from harness_adapters.environments.python import PythonEnvironment
from harness_adapters.errors import HarnessMissing
from harness_adapters.python.base import DrivenLibrary

VERSION = "0.26.0"
"""Of harbor."""


@dataclass
class Terminus2(DrivenLibrary):
    """Adapter: see the module."""

    environment: ClassVar[PythonEnvironment] = PythonEnvironment("terminus-2", VERSION, python="3.12")
    driver: ClassVar[str] = "terminus_2_agent"

    max_turns: int = 50
    """Model calls per rollout."""
    context_window: int = 32768
    """Tokens of the model's window, as the agent is told."""
    rollout_details: bool = False
    """Have the agent ask for token ids and logprobs, and keep its copy in ``Outcome.data``."""
    name: str = "terminus-2"

    def check(self) -> None:
        super().check()
        if shutil.which("tmux") is None:
            raise HarnessMissing("terminus-2 needs tmux, which is not on PATH; install tmux")
