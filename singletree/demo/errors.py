"""What can go wrong in the demo and is not a bug: each message is one line that names the remedy."""

from __future__ import annotations

from pathlib import Path


class DemoError(Exception):
    """Base of the demo's errors; the command line prints the message and exits with ``exit_code``."""

    exit_code = 1


class ModelUnavailable(DemoError):
    """The demo's model cannot be fetched, is not the expected file, or cannot be converted."""

    exit_code = 3


class ProcessFailed(DemoError):
    """One of the demo's processes ended or did not become ready."""

    exit_code = 4

    def __init__(self, message: str, log: Path | None = None) -> None:
        super().__init__(message)
        self.log = log
        """Its log, the end of which is worth showing."""


class Stalled(DemoError):
    """A phase made no progress for too long."""

    exit_code = 5
