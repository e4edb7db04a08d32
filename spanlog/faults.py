"""Which of the drivers' errors are the operator's to mend, and in what words."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import URL
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from spanlog.errors import (
    DatabaseLocked,
    DatabaseUnreachable,
    DatabaseUnwritable,
    SpanlogError,
    TransactionLost,
)

LOCK_NOT_AVAILABLE = "55P03"
ROLLED_BACK = ("40001", "40P01")
"""Serialization failure, deadlock."""
UNREACHABLE_CLASSES = ("08", "28", "3D", "53", "57")
"""SQLSTATE classes: connection, login, no such database, out of resources, operator intervention.
https://www.postgresql.org/docs/current/errcodes-appendix.html"""

SQLITE_UNWRITABLE = {
    "unable to open database file": "create its folder, or give a path that this user may write",
    "attempt to write a readonly database": "give this user write access to the file and its folder",
    "database or disk is full": "free some disk space",
    "disk i/o error": "check the disk, and that its file system supports shared memory (no network share)",
    "file is not a database": "give another path, or move the file away",
    "database disk image is malformed": "restore the file from a backup",
}


def connection_fault(
    error: DBAPIError | PoolTimeout | OSError, url: URL, busy_timeout_s: float
) -> SpanlogError | None:
    """The named error for a driver's error; null where it is a fault of the statement, not of the database."""
    if isinstance(error, PoolTimeout):
        return DatabaseLocked("other transactions of this process hold every database connection: try again")
    if url.get_backend_name() == "sqlite":
        return sqlite_fault(error, url, busy_timeout_s)
    return postgresql_fault(error, url) if isinstance(error, DBAPIError) else None


def sqlite_fault(error: DBAPIError | OSError, url: URL, busy_timeout_s: float) -> SpanlogError | None:
    """Named by SQLite's message: its result codes do not tell these apart on every Python version."""
    file = url.database
    if isinstance(error, OSError):
        if error.filename is None or Path(str(error.filename)).parent != Path(str(file)).parent:
            return None
        return DatabaseUnwritable(
            f"cannot write beside {file} ({error.strerror}): give this user access to its folder"
        )
    message = str(error.orig).lower()
    if "locked" in message or "busy" in message:
        return DatabaseLocked(
            f"{file} was locked by another process for {busy_timeout_s:g} s: stop that process, or try again"
        )
    for text, remedy in SQLITE_UNWRITABLE.items():
        if text in message:
            return DatabaseUnwritable(f"cannot use {file} ({text}): {remedy}")
    return None


def postgresql_fault(error: DBAPIError, url: URL) -> SpanlogError | None:
    """Named by SQLSTATE; an error without one comes from the connection itself."""
    server = f"{url.host or 'local socket'}:{url.port or 5432}/{url.database}"
    state = getattr(error.orig, "sqlstate", None)
    if state == LOCK_NOT_AVAILABLE:
        return DatabaseLocked(f"a row in {server} stayed locked by another transaction: try again")
    if state in ROLLED_BACK:
        return TransactionLost(f"{server} rolled a transaction back in favour of another: try again")
    import psycopg

    if not isinstance(error.orig, psycopg.OperationalError | psycopg.InterfaceError):
        return None
    if state is not None and not state.startswith(UNREACHABLE_CLASSES):
        return None
    reason = first_line(str(error.orig))
    return DatabaseUnreachable(
        f"PostgreSQL at {server} does not serve us ({reason}): check that it runs, the URL and the login"
    )


def first_line(text: str) -> str:
    """The first line that says something, without trailing punctuation."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0].rstrip(".:") if lines else "no message"
