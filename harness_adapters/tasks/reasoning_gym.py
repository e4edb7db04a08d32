"""Tasks from reasoning-gym's procedural generators.

The payload names dataset, seed, size and index: enough to make the entry again, which is how its own scorer gets it
back with types that JSON would lose. The answer itself is not in the payload.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import orjson

from harness_adapters.errors import ConfigError, HarnessMissing
from harness_adapters.installed import REMEDY
from harness_adapters.protocol import Task
from harness_adapters.tasks import TaskSource


def open_reasoning_gym(dataset: str, *, seed: int, size: int, config: dict[str, Any]) -> TaskSource:
    """``size`` tasks per epoch; each epoch has a seed of its own (``seed`` + epoch).

    Raises ``ConfigError`` for an unknown dataset or setting, ``HarnessMissing`` without the library.
    """
    make_dataset(dataset, seed, size, orjson.dumps(config))

    def epoch(number: int) -> Iterator[Task]:
        entries = make_dataset(dataset, seed + number, size, orjson.dumps(config))
        for index in range(size):
            payload = {
                "prompt": entries[index]["question"],
                "reasoning_gym": {
                    "dataset": dataset,
                    "seed": seed + number,
                    "size": size,
                    "config": config,
                    "index": index,
                },
            }
            yield Task(payload, source=f"reasoning-gym/{dataset}")

    return epoch


@lru_cache(maxsize=16)
def make_dataset(dataset: str, seed: int, size: int, config: bytes) -> Any:
    """The generator, cached; ``config`` is JSON so that it can be a key."""
    try:
        import reasoning_gym
    except ImportError:
        raise HarnessMissing(f"reasoning-gym is not installed; run: {REMEDY}") from None
    try:
        return reasoning_gym.create_dataset(dataset, seed=seed, size=size, **orjson.loads(config))
    except (ValueError, TypeError, AssertionError) as error:
        raise ConfigError(f"reasoning-gym dataset {dataset!r}: {error}") from None
