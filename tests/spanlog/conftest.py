"""Every test here runs on SQLite and on a real PostgreSQL, each test module on a database of its own."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spanlog.database import Database, open_database
from tests.postgres_server import require_postgres
from tests.spanlog.world import World

BACKENDS = [pytest.param("sqlite"), pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated, empty file to copy."""
    path = tmp_path_factory.mktemp("template") / "template.sqlite"
    open_database(f"sqlite:///{path}", migrate=True).close()
    return path


@pytest.fixture(scope="module", params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def make_url(
    backend: str, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[Callable[..., str]]:
    """``make_url(migrated=True)``: the URL of a fresh database, dropped when the module ends."""
    made: list[str] = []

    def make(*, migrated: bool = True) -> str:
        if backend == "postgresql":
            made.append(require_postgres().create_database(migrated=migrated))
            return made[-1]
        path = tmp_path_factory.mktemp("database") / "log.sqlite"
        if migrated:
            shutil.copy(request.getfixturevalue("sqlite_template"), path)
        return f"sqlite:///{path}"

    yield make
    for url in made:
        require_postgres().drop_database(url)


@pytest.fixture(scope="module")
def database(make_url: Callable[..., str]) -> Iterator[Database]:
    """The module's database, migrated. Tests share it: each makes a policy of its own."""
    database = open_database(make_url(), migrate=False)
    yield database
    database.close()


@pytest.fixture
def world(database: Database) -> World:
    """A policy of its own, with an engine, in the module's database."""
    return World(database)
