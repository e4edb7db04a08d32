"""An agent as a user of pydantic-ai would write it: it writes a file into the folder that the task names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pydantic_ai

writer = pydantic_ai.Agent(deps_type=dict, instructions="You write files.")


@writer.tool
def write_file(context: pydantic_ai.RunContext[dict[str, Any]], path: str, content: str) -> str:
    """Write a file."""
    (Path(context.deps["folder"]) / path).write_text(content)
    return f"wrote {len(content)} characters to {path}"
