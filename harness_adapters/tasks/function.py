"""Tasks from the user's own Python: ``module:function`` that yields JSON objects."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator
from typing import Any

from harness_adapters.errors import ConfigError
from harness_adapters.loading import load_object
from harness_adapters.protocol import Task
from harness_adapters.tasks import TaskSource
from harness_adapters.tasks.parse import task_from


def open_function(spec: str, args: dict[str, Any]) -> TaskSource:
    """Call ``function(**args)`` once per epoch; it gets ``epoch`` as well if it has such a parameter.

    It may yield for ever. Raises ``ConfigError`` if it cannot be imported, called with these arguments, or iterated.
    """
    function = load_object(spec, what="tasks.function")
    if not callable(function):
        raise ConfigError(f"tasks.function {spec!r} is not callable")
    signature = inspect.signature(function)
    takes_epoch = "epoch" in signature.parameters and "epoch" not in args
    try:
        signature.bind(**args, **({"epoch": 0} if takes_epoch else {}))
    except TypeError as error:
        raise ConfigError(f"tasks.args do not fit {spec!r}: {error}") from None

    def epoch(number: int) -> Iterator[Task]:
        values = function(**args, **({"epoch": number} if takes_epoch else {}))
        if not isinstance(values, Iterable):
            raise ConfigError(
                f"tasks.function {spec!r} returned {type(values).__name__}, not an iterable of objects"
            )
        for index, value in enumerate(values):
            yield task_from(value, where=f"{spec}[{index}]")

    return epoch
