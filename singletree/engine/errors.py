"""What can go wrong with the engine, each with the remedy in its one-line message.

EngineError
├── EngineNotInstalled   no vLLM environment at the home
├── InstallFailed        pip could not make it (no network, wrong interpreter, broken package)
├── ModelFolderInvalid   MODEL is not a folder with a model
├── PortTaken            another program listens there
├── StartFailed          vLLM ended, or did not become healthy in time
├── EngineUnreachable    nothing answers at the URL
└── EngineUnfit          it answers, but lacks a setting that training needs
"""

from __future__ import annotations


class EngineError(Exception):
    """Base of all; ``exit_code`` is what the command line exits with."""

    exit_code = 1


class EngineNotInstalled(EngineError):
    exit_code = 3


class InstallFailed(EngineError):
    exit_code = 4


class ModelFolderInvalid(EngineError):
    exit_code = 2


class PortTaken(EngineError):
    exit_code = 2


class StartFailed(EngineError):
    exit_code = 5


class EngineUnreachable(EngineError):
    exit_code = 6


class EngineUnfit(EngineError):
    exit_code = 7
