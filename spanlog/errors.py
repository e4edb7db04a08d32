"""What can go wrong with the span log, in words that name the remedy.

SpanlogError                 base; ``exit_code`` is what the command line exits with
├── InvalidDatabaseUrl       not a database that this program speaks to
├── DatabaseUnwritable       file or folder missing, read-only, full, or not a database
├── DatabaseLocked           another process held the write lock longer than the busy time-out
│   └── TransactionLost      PostgreSQL rolled it back in favour of another one
├── DatabaseUnreachable      PostgreSQL does not answer, or refuses the login
├── DatabaseClaimed          a second proxy on one SQLite file
├── SchemaMismatch           the tables are of another revision than this code
├── WriterClosed             a span came after the writer was closed
├── NotFound                 no row of that id
├── Conflict                 the row's state, or an earlier call under the same id, says otherwise
│   └── RolloutEnded         an ended rollout never moves again
├── RewardNotFinite          a reward that is NaN or infinite
├── AdmissionRefused         enough rollouts are outstanding; ``retry_after`` seconds
└── FenceLost                another trainer took the policy over
    └── LeaseLost            a group is no longer leased to this trainer
"""

from __future__ import annotations


class SpanlogError(Exception):
    """Base of every error here; the message is one line and names the remedy."""

    exit_code: int = 1


class InvalidDatabaseUrl(SpanlogError):
    """The URL names no database that this program speaks to."""

    exit_code = 2


class DatabaseUnwritable(SpanlogError):
    """The SQLite file cannot be opened for writing."""

    exit_code = 3


class DatabaseLocked(SpanlogError):
    """Another process held the write lock for longer than the busy time-out."""

    exit_code = 3


class TransactionLost(DatabaseLocked):
    """PostgreSQL rolled the transaction back in favour of another one: a deadlock, or a failed serialization."""


class DatabaseUnreachable(SpanlogError):
    """PostgreSQL does not answer, or refuses the login."""

    exit_code = 3


class DatabaseClaimed(SpanlogError):
    """Another proxy already serves this SQLite file."""

    exit_code = 3


class SchemaMismatch(SpanlogError):
    """The tables are of another revision than this code."""

    exit_code = 3


class WriterClosed(SpanlogError):
    """The span writer was closed, or its thread has died."""


class NotFound(SpanlogError):
    """No row of that id."""


class Conflict(SpanlogError):
    """The row's state, or an earlier call under the same id, says otherwise."""


class RolloutEnded(Conflict):
    """An ended rollout takes no calls and never moves again."""


class RewardNotFinite(SpanlogError):
    """A reward that is NaN or infinite; a missing reward is left out instead [I4]."""


class AdmissionRefused(SpanlogError):
    """Enough rollouts are outstanding for the policy's staleness bound."""

    def __init__(self, message: str, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which asking again makes sense."""


class FenceLost(SpanlogError):
    """Another trainer took the policy over: this one must stop, and has changed nothing."""

    exit_code = 4


class LeaseLost(FenceLost):
    """A group is no longer leased to this trainer."""
