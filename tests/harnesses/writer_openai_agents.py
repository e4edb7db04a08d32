"""An agent as a user of openai-agents would write it: it writes a file into the folder that the task names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import agents


@agents.function_tool
def write_file(context: agents.RunContextWrapper[dict[str, Any]], path: str, content: str) -> str:
    """Write a file."""
    (Path(context.context["folder"]) / path).write_text(content)
    return f"wrote {len(content)} characters to {path}"


writer = agents.Agent(name="writer", instructions="You write files.", tools=[write_file])
