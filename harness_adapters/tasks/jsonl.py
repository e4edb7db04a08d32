"""Tasks from a file with one JSON object per line."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

from harness_adapters.errors import ConfigError
from harness_adapters.protocol import Task
from harness_adapters.tasks import TaskSource
from harness_adapters.tasks.parse import task_from


def open_jsonl(path: Path, *, shuffle_seed: int | None = None) -> TaskSource:
    """Read the whole file now, so that a bad line is refused before any rollout.

    With ``shuffle_seed`` each epoch has an order of its own. Raises ``ConfigError`` with file and line.
    """
    tasks = list(read_tasks(path))
    if not tasks:
        raise ConfigError(f"{path} holds no task; write one JSON object per line with at least a prompt")

    def epoch(number: int) -> list[Task]:
        if shuffle_seed is None:
            return tasks
        return random.Random(f"{shuffle_seed}/{number}").sample(tasks, len(tasks))

    return epoch


def read_tasks(path: Path) -> Iterator[Task]:
    """The file's tasks; blank lines are skipped."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read tasks from {path}: {error}") from None
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
        except ValueError as error:
            raise ConfigError(f"{path}:{number}: not JSON: {error}") from None
        yield task_from(value, where=f"{path.name}:{number}")
