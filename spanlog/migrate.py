"""Bring a database's schema to this code's revision, or back; safe when several processes start at once.

The whole of a migration is one transaction on both databases. Processes that start together queue: on SQLite at the
write lock, on PostgreSQL at an advisory lock; whoever comes second finds nothing left to do.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from alembic.util import CommandError
from sqlalchemy import Connection, text

from spanlog.errors import SchemaMismatch

if TYPE_CHECKING:
    from spanlog.database import Database

FOLDER = Path(__file__).parent / "migrations"
ADVISORY_LOCK = 0x53494E474C45
"""The advisory lock's number: "SINGLE" in ASCII."""


def config(connection: Connection | None = None) -> Config:
    """Alembic's configuration, made here so that no ini file has to be found."""
    settings = Config()
    settings.set_main_option("script_location", str(FOLDER))
    settings.set_main_option("path_separator", "os")
    settings.attributes["connection"] = connection
    return settings


def head() -> str:
    """The newest revision that this code knows."""
    revision = ScriptDirectory.from_config(config()).get_current_head()
    assert revision is not None
    return revision


def current(connection: Connection) -> str | None:
    """The database's revision; null for an empty one."""
    return MigrationContext.configure(connection).get_current_revision()


def upgrade(database: Database, revision: str = "head") -> None:
    """Upgrade to ``revision``. Raises SchemaMismatch if the database is newer than this code."""
    with database.read() as connection:
        if revision == "head" and current(connection) == head():
            return
    with database.begin() as connection:
        take_lock(connection, database)
        run(connection, database, "upgrade", revision)


def downgrade(database: Database, revision: str) -> None:
    """Downgrade to ``revision`` (``base`` removes every table). Raises SchemaMismatch for an unknown one."""
    with database.begin() as connection:
        take_lock(connection, database)
        run(connection, database, "downgrade", revision)


def check(database: Database) -> None:
    """Raises SchemaMismatch unless the database is at this code's revision."""
    with database.read() as connection:
        found = current(connection)
    if found == head():
        return
    url = database.display_url
    if found is None:
        raise SchemaMismatch(f"{url} has no span log yet: run `singletree db upgrade --database {url}`")
    if found not in known_revisions():
        raise SchemaMismatch(newer(found, url))
    raise SchemaMismatch(
        f"{url} is at revision {found}, this version needs {head()}: run `singletree db upgrade --database {url}`"
    )


def known_revisions() -> frozenset[str]:
    """Every revision that this code can move between."""
    return frozenset(script.revision for script in ScriptDirectory.from_config(config()).walk_revisions())


def newer(found: str, url: str) -> str:
    """The message for a database that a newer program made."""
    return f"{url} is at revision {found}, which this version does not know: install a newer Singletree"


def take_lock(connection: Connection, database: Database) -> None:
    """Queue behind another process that migrates; released with the transaction."""
    if not database.is_sqlite:
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": ADVISORY_LOCK})


def run(connection: Connection, database: Database, verb: str, revision: str) -> None:
    """Run one Alembic command inside the caller's transaction."""
    try:
        getattr(command, verb)(config(connection), revision)
    except CommandError as error:
        found = current(connection)
        if found is not None and found not in known_revisions():
            raise SchemaMismatch(newer(found, database.display_url)) from error
        raise SchemaMismatch(f"cannot {verb} to {revision}: {error}") from error
