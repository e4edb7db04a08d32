"""What Alembic runs: migrate on the connection, and in the transaction, that ``spanlog.migrate`` hands over."""

from __future__ import annotations

from alembic import context

from spanlog.models import Base


def main() -> None:
    """Run the migrations that the command asked for."""
    connection = context.config.attributes["connection"]
    context.configure(
        connection=connection, target_metadata=Base.metadata, render_as_batch=True, compare_type=True
    )
    with context.begin_transaction():
        context.run_migrations()


main()
