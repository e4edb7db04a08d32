"""Migrations both ways and alike with the models; connections, transactions, and errors that name the remedy."""

from __future__ import annotations

import multiprocessing
import os
import sqlite3
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import inspect, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from spanlog import migrate
from spanlog.database import Database, open_database, parse_url
from spanlog.errors import (
    DatabaseClaimed,
    DatabaseLocked,
    DatabaseUnreachable,
    DatabaseUnwritable,
    InvalidDatabaseUrl,
    SchemaMismatch,
    TransactionLost,
)
from spanlog.models import Base
from tests.postgres_server import free_port


def tables(database: Database) -> set[str]:
    with database.read() as conn:
        return set(inspect(conn).get_table_names()) - {"alembic_version"}


def test_models_and_migrations_agree(database: Database) -> None:
    with database.read() as conn:
        context = MigrationContext.configure(conn, opts={"compare_type": True, "render_as_batch": True})
        assert compare_metadata(context, Base.metadata) == []


def test_migrates_up_and_down(make_url: Callable[..., str]) -> None:
    database = Database(make_url(migrated=False))
    try:
        assert tables(database) == set()
        migrate.upgrade(database)
        assert tables(database) == set(Base.metadata.tables)
        migrate.check(database)
        migrate.upgrade(database)
        migrate.downgrade(database, "base")
        assert tables(database) == set()
        migrate.upgrade(database)
        assert tables(database) == set(Base.metadata.tables)
    finally:
        database.close()


def test_a_policy_from_before_keeps_to_what_it_did(make_url: Callable[..., str]) -> None:
    """It was observed, and stays so through an upgrade, with the spans that it has; and back again."""
    database = Database(make_url(migrated=False))
    try:
        migrate.upgrade(database, "0001")
        names = "id, kind, model, version, committed_version, fence, sampling, group_size, rollouts_per_step"
        values = "'p', 'train', 'm', 3, 3, 1, '{}', 8, 0, 0, 1.5"
        with database.begin() as conn:
            conn.execute(text(f"INSERT INTO policies ({names}, max_staleness, created_at) VALUES ({values})"))
        for _ in range(2):
            migrate.upgrade(database)
            with database.read() as conn:
                row = conn.execute(text("SELECT version, mode, history, untrainable FROM policies")).one()
            assert tuple(row) == (3, "observe", "append_only", "serve")
            migrate.downgrade(database, "0001")
            with database.read() as conn:
                assert conn.execute(text("SELECT version FROM policies")).scalar_one() == 3
    finally:
        database.close()


def start_up(url: str) -> str | None:
    """In a process of its own: open with migration; returns the error, if any."""
    try:
        open_database(url, migrate=True).close()
    except Exception as error:
        return repr(error)
    return None


def test_start_ups_do_not_race(make_url: Callable[..., str]) -> None:
    url = make_url(migrated=False)
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(start_up, [url] * 2, chunksize=1) == [None] * 2
    open_database(url, migrate=False).close()


def test_wrong_revision_names_the_command(make_url: Callable[..., str]) -> None:
    url = make_url(migrated=False)
    with pytest.raises(SchemaMismatch, match=r"singletree db upgrade --database (sqlite|postgresql):"):
        open_database(url, migrate=False)
    database = open_database(url, migrate=True)
    with database.begin() as conn:
        conn.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    database.close()
    for again in (False, True):
        with pytest.raises(SchemaMismatch, match="install a newer Singletree"):
            open_database(url, migrate=again)


def test_a_failed_transaction_leaves_nothing(make_url: Callable[..., str]) -> None:
    database = open_database(make_url(), migrate=False)
    with pytest.raises(ZeroDivisionError), database.begin() as conn:
        conn.execute(text("INSERT INTO blobs (hash, codec, data) VALUES ('h', 'raw', '')"))
        raise ZeroDivisionError
    with database.read() as conn:
        assert conn.execute(text("SELECT count(*) FROM blobs")).scalar_one() == 0
    database.close()


def test_reading_cannot_write(database: Database) -> None:
    with pytest.raises((DatabaseUnwritable, DBAPIError)), database.read() as conn:
        conn.execute(text("INSERT INTO blobs (hash, codec, data) VALUES ('h', 'raw', '')"))
    with database.begin() as conn:
        conn.execute(text("DELETE FROM blobs WHERE hash = 'h'"))


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("sqlite://", "in memory"),
        ("sqlite:///:memory:", "in memory"),
        ("mysql://root@localhost/x", "not supported"),
        ("just a path", "cannot be read"),
    ],
)
def test_urls_that_are_refused(url: str, message: str) -> None:
    with pytest.raises(InvalidDatabaseUrl, match=message):
        parse_url(url)


def test_postgresql_urls_name_the_driver_and_hide_the_password() -> None:
    database = Database("postgresql://someone:secret@127.0.0.1/log")
    assert database.url.drivername == "postgresql+psycopg"
    assert "secret" not in database.display_url
    database.close()


def test_unreachable_postgresql() -> None:
    url = f"postgresql://someone:secret@127.0.0.1:{free_port()}/log"
    with pytest.raises(DatabaseUnreachable, match="check that it runs") as caught:
        open_database(url, migrate=False)
    assert "secret" not in str(caught.value) and "\n" not in str(caught.value)


def test_missing_database_on_a_running_postgresql(make_url: Callable[..., str], backend: str) -> None:
    if backend == "sqlite":
        return
    url = make_url()
    with pytest.raises(DatabaseUnreachable, match="does not exist"):
        open_database(url + "_nowhere", migrate=False)


def test_a_locked_file_is_named(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'log.sqlite'}"
    database = open_database(url, migrate=True, busy_timeout_s=0.1)
    other = sqlite3.connect(tmp_path / "log.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(DatabaseLocked, match=r"was locked by another process for 0\.1 s"), database.begin():
        pass
    with database.read() as conn:
        assert conn.execute(text("SELECT count(*) FROM spans")).scalar_one() == 0, "readers do not wait"
    other.execute("ROLLBACK")
    with database.begin():
        pass
    other.close()
    database.close()


def test_threads_queue_for_writing(tmp_path: Path) -> None:
    database = open_database(f"sqlite:///{tmp_path / 'log.sqlite'}", migrate=True, busy_timeout_s=5)

    def write(index: int) -> None:
        for turn in range(5):
            with database.begin() as conn:
                conn.execute(
                    text("INSERT INTO blobs (hash, codec, data) VALUES (:h, 'raw', '')"),
                    {"h": f"{index}/{turn}"},
                )

    threads = [threading.Thread(target=write, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with database.read() as conn:
        assert conn.execute(text("SELECT count(*) FROM blobs")).scalar_one() == 40
    database.close()


def test_a_folder_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(DatabaseUnwritable, match="create its folder"):
        open_database(f"sqlite:///{tmp_path / 'nowhere' / 'log.sqlite'}", migrate=True)


def test_a_file_that_is_no_database(tmp_path: Path) -> None:
    (tmp_path / "log.sqlite").write_text("hello, this is text" * 100)
    with pytest.raises(DatabaseUnwritable, match="give another path"):
        open_database(f"sqlite:///{tmp_path / 'log.sqlite'}", migrate=True)


def open_as_nobody(path: str) -> str:
    """In a process of its own, without root's privileges; returns the error."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    try:
        open_database(f"sqlite:///{path}", migrate=True).close()
    except DatabaseUnwritable as error:
        return str(error)
    return "opened"


def test_a_folder_that_may_not_be_written(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert "this user may write" in pool.apply(open_as_nobody, (str(closed / "log.sqlite"),))


def test_a_file_that_may_not_be_written(tmp_path: Path) -> None:
    for folder in (tmp_path, *tmp_path.parents[:2]):
        folder.chmod(0o755)
    path = tmp_path / "log.sqlite"
    sqlite3.connect(path).execute("CREATE TABLE t (x)").connection.close()
    path.chmod(0o444)
    tmp_path.chmod(0o555)
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert "write access" in pool.apply(open_as_nobody, (str(path),))


def test_one_proxy_per_file(make_url: Callable[..., str], backend: str) -> None:
    url = make_url()
    first, second = Database(url), Database(url)
    first.claim_single_writer()
    first.claim_single_writer()
    if backend == "sqlite":
        with pytest.raises(DatabaseClaimed, match=rf"pid {os.getpid()}"):
            second.claim_single_writer()
        first.close()
    second.claim_single_writer()
    first.close()
    second.close()


def test_a_deadlock_is_named(database: Database, backend: str) -> None:
    if backend == "sqlite":
        return
    meeting, lost = threading.Barrier(2), []

    def lock(first: int, second: int) -> None:
        try:
            with database.begin() as conn:
                conn.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": first})
                meeting.wait(10)
                conn.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": second})
        except TransactionLost as error:
            lost.append(str(error))

    threads = [threading.Thread(target=lock, args=pair) for pair in ((1, 2), (2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lost) == 1 and lost[0].endswith("try again")


def test_a_pool_without_a_free_connection_is_named(database: Database) -> None:
    with pytest.raises(DatabaseLocked, match="try again"), database.read():
        raise PoolTimeout("QueuePool limit reached")


def test_errors_do_not_show_what_was_to_be_written(database: Database) -> None:
    with pytest.raises(DBAPIError) as caught, database.begin() as conn:
        conn.execute(text("INSERT INTO nowhere (x) VALUES (:x)"), {"x": "a secret prompt"})
    assert "a secret prompt" not in str(caught.value)


def test_a_server_that_is_cut_off_is_noticed(database: Database, backend: str) -> None:
    if backend == "sqlite":
        return
    with database.read() as conn:
        driver: Any = conn.connection.driver_connection
    options = driver.info.get_parameters()
    assert int(options["keepalives_idle"]) + 3 * int(options["keepalives_interval"]) <= 30
    assert int(options["tcp_user_timeout"]) == 30_000
