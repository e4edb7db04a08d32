"""The two tools that drivers give their agent: they act in the current folder, which is the rollout's workspace.

Each library reads name, parameters and description from the function itself, so the docstrings are the model's.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

COMMAND_TIMEOUT_S = 60.0
LONGEST_RESULT = 10_000
"""Characters of output that the model is shown."""


def write_file(path: str, content: str) -> str:
    """Write a file in the workspace, replacing what was there.

    Args:
        path: Where, relative to the workspace.
        content: The whole new content.
    """
    try:
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    except (OSError, ValueError) as error:
        return f"error: {error}"
    return f"wrote {len(content)} characters to {path}"


def run_command(command: str) -> str:
    """Run a shell command in the workspace and return what it prints.

    Args:
        command: The command line.
    """
    try:
        done = subprocess.run(
            ["bash", "-c", command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired:
        return f"error: ended after {COMMAND_TIMEOUT_S:g} s"
    except (OSError, ValueError) as error:
        return f"error: {error}"
    text = done.stdout.decode(errors="replace")[-LONGEST_RESULT:]
    return f"{text}\nexit code {done.returncode}"
