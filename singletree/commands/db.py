"""``singletree db``: the span log's schema, made, checked and moved by hand; ``serve`` upgrades on its own."""

from __future__ import annotations

from typing import Annotated

import typer

from singletree.commands.options import DEFAULT_URL, DatabaseOption

app = typer.Typer(
    help="Create, upgrade and check the span log's schema.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def upgrade(
    database: DatabaseOption = DEFAULT_URL,
    revision: Annotated[str, typer.Option(help="Revision to go to.")] = "head",
) -> None:
    """Bring the schema up to this version; does nothing where it is there already. Safe beside running programs."""
    from spanlog import migrate
    from spanlog.database import Database

    log = Database(database)
    try:
        migrate.upgrade(log, revision)
        with log.read() as connection:
            typer.echo(f"{log.display_url} is at revision {migrate.current(connection)}")
    finally:
        log.close()


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="Revision to go back to; 'base' removes every table.")],
    database: DatabaseOption = DEFAULT_URL,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Take the schema back. What the older schema has no place for is lost."""
    from spanlog import migrate
    from spanlog.database import Database

    log = Database(database)
    try:
        if not yes:
            typer.confirm(
                f"Take {log.display_url} back to {revision} and lose what it has no place for?", abort=True
            )
        migrate.downgrade(log, revision)
        typer.echo(f"{log.display_url} is at revision {revision}")
    finally:
        log.close()


@app.command()
def check(database: DatabaseOption = DEFAULT_URL) -> None:
    """Say whether the schema is the one that this version needs; exit code 0 if so."""
    from spanlog import migrate
    from spanlog.database import open_database

    log = open_database(database, migrate=False)
    try:
        typer.echo(f"{log.display_url} is at revision {migrate.head()}, the one that this version needs")
    finally:
        log.close()
