"""Many rows in one statement, for the one place where rows come by the hundred.

Why not ``executemany``: SQLite's driver gives up Python's global lock once for each row, and beside a busy event loop it
waits to get it back each time; and SQLAlchemy's work for each row costs more than the database's. So a statement with
as many ``VALUES`` as there are rows is written here once for each size, from SQLAlchemy's own column types and quoting.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Dialect

from spanlog.models import Base

MOST_VALUES = 8000
"""Parameters of one statement: PostgreSQL takes 65,535, SQLite 32,766, and a smaller statement is planned sooner."""
Converter = Callable[[Any], Any]


class Table:
    """What is written of a table, in one dialect."""

    def __init__(self, dialect: Dialect, model: type[Base]) -> None:
        columns = list(model.__table__.columns)
        quote = dialect.identifier_preparer.quote
        self.names = [column.key for column in columns]
        self.converters: list[tuple[int, Converter]] = []
        for place, column in enumerate(columns):
            convert = column.type.dialect_impl(dialect).bind_processor(dialect)
            if convert is not None:
                self.converters.append((place, convert))
        listed = ", ".join(quote(column.name) for column in columns)
        mark = "?" if dialect.positional and dialect.paramstyle == "qmark" else "%s"
        self.begin = f"INSERT INTO {quote(model.__tablename__)} ({listed}) VALUES "
        self.row = f"({', '.join([mark] * len(columns))})"

    def values(self, row: Mapping[str, Any]) -> list[Any]:
        """The row's parameters in the columns' order. Raises KeyError where one is missing."""
        values = [row[name] for name in self.names]
        for place, convert in self.converters:
            values[place] = convert(values[place])
        return values


@lru_cache
def _table(dialect: Dialect, model: type[Base]) -> Table:
    return Table(dialect, model)


def insert_rows(
    conn: Connection, model: type[Base], rows: Sequence[Mapping[str, Any]], *, ignore: bool = False
) -> None:
    """Inserts the rows, each with a value for every column. ``ignore``: leaves alone those whose key is taken.

    Statements hold powers of two of rows, so that few different ones have to be prepared.
    """
    table = _table(conn.dialect, model)
    end = " ON CONFLICT DO NOTHING" if ignore else ""
    most = 1 << (MOST_VALUES // len(table.names)).bit_length() - 1
    first = 0
    while first < len(rows):
        count = min(most, 1 << (len(rows) - first).bit_length() - 1)
        values: list[Any] = []
        for row in rows[first : first + count]:
            values += table.values(row)
        statement = table.begin + ", ".join([table.row] * count) + end
        conn.exec_driver_sql(statement, tuple(values))
        first += count
