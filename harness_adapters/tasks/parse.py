"""Turns a JSON object into a ``Task``; shared by the sources that users write."""

from __future__ import annotations

import json
from typing import Any

from harness_adapters.errors import ConfigError
from harness_adapters.protocol import Task


def task_from(value: Any, *, where: str) -> Task:
    """A task from an object that holds ``prompt`` and whatever the agent and the reward need.

    ``id`` is taken out as the task's id. A lone string is a prompt. Raises ``ConfigError`` naming ``where``.
    """
    if isinstance(value, str):
        value = {"prompt": value}
    if isinstance(value, Task):
        value = {**value.payload, **({"id": value.id} if value.id else {})}
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: a task must be a JSON object or a string, not {type(value).__name__}")
    try:
        payload = json.loads(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{where}: the task is not JSON: {error}") from None
    task_id = payload.pop("id", None)
    return Task(payload, id=None if task_id is None else str(task_id), source=where)
