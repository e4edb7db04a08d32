"""Connections to the span log: one class for SQLite and PostgreSQL, and errors that say what to do.

SQLite: WAL, so that readers never wait; every write transaction takes the write lock at its start (BEGIN IMMEDIATE: a
deferred one that upgrades later fails at once with "database is locked"); ``synchronous=FULL``, so that what was
committed survives a power cut [I3]. PostgreSQL: READ COMMITTED with explicit row locks (see ``spanlog.locks``).
"""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Literal

from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from spanlog import migrate as migrations
from spanlog.errors import (
    DatabaseClaimed,
    DatabaseLocked,
    DatabaseUnreachable,
    DatabaseUnwritable,
    InvalidDatabaseUrl,
)
from spanlog.faults import connection_fault

Durability = Literal["full", "async"]

READ_ONLY = "spanlog_read_only"
FILE = "spanlog_file"
LOCK_TIMEOUT_MS = 30_000
CONNECT_TIMEOUT_S = 5
KEEP_ALIVE = {"keepalives_idle": 15, "keepalives_interval": 5, "tcp_user_timeout": 30_000}
"""A server that is cut off without a word is noticed within half a minute, not by TCP's quarter of an hour."""


def parse_url(url: str) -> URL:
    """The URL with its driver named. Raises InvalidDatabaseUrl for another database or one in memory."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise InvalidDatabaseUrl(
            "the database URL cannot be read: use sqlite:///file or postgresql://user@host/name"
        ) from None
    backend = parsed.get_backend_name()
    if backend == "sqlite":
        if not parsed.database or parsed.database == ":memory:":
            raise InvalidDatabaseUrl("a database in memory cannot be shared by processes: use sqlite:///file")
        return parsed.set(drivername="sqlite+pysqlite")
    if backend in ("postgresql", "postgres"):
        return parsed.set(drivername="postgresql+psycopg")
    raise InvalidDatabaseUrl(f"{backend} is not supported: use sqlite:///file or postgresql://user@host/name")


class Database:
    """One database. Thread-safe; each ``begin`` and ``read`` takes a connection of the pool.

    ``durability``: ``full`` waits until a commit is on the disk; ``async`` may lose the last moments at a power cut
    (not at a crash of the process). ``busy_timeout_s``: how long a write waits for another process's transaction.
    """

    def __init__(
        self, url: str, *, durability: Durability = "full", busy_timeout_s: float = 10.0, pool_size: int = 5
    ) -> None:
        self.url = parse_url(url)
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self.durability: Durability = durability
        self.busy_timeout_s = busy_timeout_s
        self._write_lock = threading.Lock()
        self._claim: IO[str] | None = None
        self._file: tuple[int, int] | None = None
        try:
            self.engine = self._make_engine(pool_size)
        except ModuleNotFoundError:
            raise DatabaseUnreachable(
                "the PostgreSQL driver is not installed: pip install 'singletree[postgres]'"
            ) from None

    @property
    def display_url(self) -> str:
        """The URL without its password."""
        return self.url.set(drivername=self.url.get_backend_name()).render_as_string(hide_password=True)

    @contextmanager
    def begin(self) -> Iterator[Connection]:
        """A write transaction: committed at the end of the block, rolled back by an exception.

        Raises DatabaseLocked, DatabaseUnwritable or DatabaseUnreachable where the database fails.
        """
        with self._queue_for_writing(), self._named_errors():
            self._require_file()
            with self.engine.begin() as connection:
                opened = connection.info.get(FILE)
                yield connection
            if (
                self.is_sqlite and self._find_file() != opened
            ):  # the commit went into a file that nobody will read
                raise self._file_is_gone()

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """A read transaction: on SQLite one snapshot, never waiting; writing in it is an error. Raises as ``begin``."""
        options: dict[str, Any] = {READ_ONLY: True} if self.is_sqlite else {"postgresql_readonly": True}
        with self._named_errors():
            self._require_file()
            with self.engine.connect() as connection:
                connection = connection.execution_options(**options)
                with connection.begin():
                    yield connection

    def _find_file(self) -> tuple[int, int] | None:
        """Device and inode of what lies at SQLite's path; null: nothing."""
        try:
            found = Path(str(self.url.database)).stat()
        except FileNotFoundError:
            return None
        return found.st_dev, found.st_ino

    def _require_file(self) -> None:
        """Opens SQLite's file anew where another one lies at its path. Raises DatabaseUnwritable if none does.

        A process writes on into a file that was moved away or removed, and SQLite makes an empty one for the next
        connection: neither is noticed without this.
        """
        if not self.is_sqlite or self._file is None:
            return
        found = self._find_file()
        if found is None:
            raise self._file_is_gone()
        if found != self._file:
            self._file = found
            self.engine.dispose()

    def _file_is_gone(self) -> DatabaseUnwritable:
        return DatabaseUnwritable(f"{self.url.database} was moved away or removed: put it back, or restart")

    def claim_single_writer(self) -> None:
        """Refuse a second proxy on one SQLite file, until ``close``; PostgreSQL takes many. Raises DatabaseClaimed."""
        if not self.is_sqlite or self._claim is not None:
            return
        path = Path(f"{self.url.database}-proxy.lock")
        with self._named_errors():
            claim = path.open("a+")
        try:
            fcntl.flock(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            claim.seek(0)
            holder = claim.read().strip() or "unknown"
            claim.close()
            raise DatabaseClaimed(
                f"another proxy (pid {holder}) serves {self.url.database}: stop it, or use PostgreSQL for several"
            ) from None
        claim.truncate(0)
        claim.write(str(os.getpid()))
        claim.flush()
        self._claim = claim

    def close(self) -> None:
        """Close the pool and give up the claim; safe to call twice."""
        self.engine.dispose()
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    def _make_engine(self, pool_size: int) -> Engine:
        serializer = json.JSONEncoder(allow_nan=False, separators=(",", ":")).encode
        if self.is_sqlite:
            engine = create_engine(
                self.url,
                json_serializer=serializer,
                hide_parameters=True,
                pool_size=pool_size,
                max_overflow=20,
                connect_args={"timeout": self.busy_timeout_s, "isolation_level": None},
            )
            event.listen(engine, "connect", self._prepare_sqlite)
            event.listen(engine, "begin", begin_sqlite)
            return engine
        commit = "on" if self.durability == "full" else "off"
        return create_engine(
            self.url,
            json_serializer=serializer,
            hide_parameters=True,  # they hold requests and replies, and errors are logged
            pool_size=pool_size,
            max_overflow=5,
            pool_pre_ping=True,
            connect_args={
                "connect_timeout": CONNECT_TIMEOUT_S,
                **KEEP_ALIVE,
                "application_name": "singletree",
                "options": f"-c lock_timeout={LOCK_TIMEOUT_MS} -c synchronous_commit={commit}",
            },
        )

    def _prepare_sqlite(self, connection: Any, record: Any) -> None:
        cursor = connection.cursor()
        cursor.execute("PRAGMA journal_mode=WAL")
        cursor.execute(f"PRAGMA synchronous={'FULL' if self.durability == 'full' else 'NORMAL'}")
        cursor.execute("PRAGMA foreign_keys=ON")
        cursor.close()
        record.info[FILE] = self._file = self._find_file()

    @contextmanager
    def _queue_for_writing(self) -> Iterator[None]:
        """Threads of this process queue here; SQLite itself would have them poll, without order."""
        if not self.is_sqlite:
            yield
            return
        if not self._write_lock.acquire(timeout=2 * self.busy_timeout_s + 1):
            raise DatabaseLocked(f"a write transaction of this process holds {self.url.database}: try again")
        try:
            yield
        finally:
            self._write_lock.release()

    @contextmanager
    def _named_errors(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, PoolTimeout, OSError) as error:
            fault = connection_fault(error, self.url, self.busy_timeout_s)
            if fault is None:
                raise
            raise fault from error


def begin_sqlite(connection: Connection) -> None:
    """Start a transaction in the mode that ``Database`` asks for (the driver's own begins are switched off)."""
    read_only = connection.get_execution_options().get(READ_ONLY, False)
    connection.exec_driver_sql(f"PRAGMA query_only={int(read_only)}")
    connection.exec_driver_sql("BEGIN" if read_only else "BEGIN IMMEDIATE")


def open_database(
    url: str,
    *,
    migrate: bool,
    durability: Durability = "full",
    busy_timeout_s: float = 10.0,
    pool_size: int = 5,
) -> Database:
    """A database whose schema is this code's. ``migrate``: bring it there; otherwise only check.

    Raises InvalidDatabaseUrl, DatabaseUnwritable, DatabaseUnreachable, DatabaseLocked, SchemaMismatch.
    """
    database = Database(url, durability=durability, busy_timeout_s=busy_timeout_s, pool_size=pool_size)
    try:
        if migrate:
            migrations.upgrade(database)
        else:
            migrations.check(database)
    except BaseException:
        database.close()
        raise
    return database
