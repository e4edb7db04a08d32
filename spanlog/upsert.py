"""``INSERT … ON CONFLICT DO NOTHING``, which both databases have and SQLAlchemy spells per dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Insert, literal
from sqlalchemy.dialects import postgresql, sqlite

from spanlog.models import Base


def ignoring_insert(conn: Connection, model: type[Base]) -> Insert:
    """The statement, for one row or many."""
    dialect = sqlite if conn.dialect.name == "sqlite" else postgresql
    return dialect.insert(model).on_conflict_do_nothing()


def insert_or_ignore(conn: Connection, model: type[Base], row: Mapping[str, Any]) -> bool:
    """Insert one row unless its key is taken. True if it is new (by RETURNING: drivers do not agree on row counts)."""
    statement = ignoring_insert(conn, model).values(**row).returning(literal(1))
    return conn.execute(statement).first() is not None
