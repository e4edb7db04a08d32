"""What can go wrong on the way from a task to a rewarded rollout, and what the user can do about it.

    HarnessError
    ├── ConfigError            a run's configuration cannot work            exit 2
    ├── HarnessMissing         the harness is not installed, or not at the proved version   exit 2
    ├── RewardInvalid          a reward function gave no finite number (fails one rollout, not the run)
    ├── NothingSucceeded       every rollout of the run failed              exit 1
    ├── WorkerBroken           a worker process cannot start                exit 2
    └── ControlPlaneError      the proxy's control plane                    exit 3
        ├── ProxyUnreachable
        ├── KeyRefused         unknown key, or a key of the wrong scope
        ├── NotFound           unknown policy, group or rollout
        ├── Conflict           the thing exists otherwise, or has ended
        └── AdmissionRefused   too many rollouts are in flight or unconsumed; try again after ``retry_after`` seconds

Messages are one line and name the remedy; the command line prints them as they are.
"""

from __future__ import annotations


class HarnessError(Exception):
    """Base of every error of this package."""

    exit_code = 1
    """Exit status of the command that this error ends."""


class ConfigError(HarnessError):
    """The configuration of a run is wrong; nothing was started."""

    exit_code = 2


class HarnessMissing(HarnessError):
    """The harness is not installed, or at another version than the one its adapter was proved with."""

    exit_code = 2


class RewardInvalid(HarnessError):
    """A reward function raised, or returned something that is not a finite number."""


class NothingSucceeded(HarnessError):
    """The run ended without one rollout that succeeded."""


class WorkerBroken(HarnessError):
    """A warm worker process cannot start: its agent cannot be imported, say."""

    exit_code = 2


class ControlPlaneError(HarnessError):
    """The proxy refused a control-plane request.

    ``status`` is the HTTP status (0: no answer), ``code`` the proxy's machine-readable cause.
    """

    exit_code = 3

    def __init__(self, message: str, *, status: int = 0, code: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class ProxyUnreachable(ControlPlaneError):
    """No proxy answers at the address."""


class KeyRefused(ControlPlaneError):
    """The key is unknown, or its scope does not open the control plane."""


class NotFound(ControlPlaneError):
    """The policy, group or rollout does not exist."""


class Conflict(ControlPlaneError):
    """The thing exists with another body, or has already ended."""


class AdmissionRefused(ControlPlaneError):
    """Admission control: the trainer is behind. ``retry_after`` is in seconds."""

    def __init__(self, message: str, *, retry_after: float, status: int = 429, code: str = "") -> None:
        super().__init__(message, status=status, code=code)
        self.retry_after = retry_after
