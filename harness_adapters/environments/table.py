"""Every harness that lives in an environment of its own."""

from __future__ import annotations

from typing import Protocol


class Environment(Protocol):
    """An environment that can be made."""

    def check(self) -> None:
        """Raises ``HarnessMissing`` with the remedy unless it is there."""
        ...

    def install(self) -> None:
        """Makes it unless it is there. Raises ``HarnessMissing`` where it cannot be made."""
        ...


def environments() -> dict[str, Environment]:
    """By the names that configurations give the harnesses."""
    from harness_adapters.node.table import NODE_HARNESSES
    from harness_adapters.python.table import PYTHON_HARNESSES

    return {name: adapter.environment for name, adapter in (NODE_HARNESSES | PYTHON_HARNESSES).items()}
