"""A private PostgreSQL for the tests: started from the distribution's binaries once a run, a fresh database per caller.

``SINGLETREE_TEST_POSTGRES`` names a server to use instead (a URL whose user may create databases). Without either the
tests fail and say what to do; ``SINGLETREE_SKIP_POSTGRES=1`` skips them, knowingly.
"""

from __future__ import annotations

import atexit
import functools
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.exc import OperationalError

REMEDY = (
    "no PostgreSQL server binaries: apt-get install postgresql, or point SINGLETREE_TEST_POSTGRES at a server, "
    "or set SINGLETREE_SKIP_POSTGRES=1 to leave these tests out"
)
START_TIMEOUT_S = 60.0
SETTINGS = (
    "max_connections=60",
    "shared_buffers=32MB",
    "listen_addresses=127.0.0.1",
    "log_min_messages=error",
)


class PostgresServer:
    """A server and the databases made on it."""

    def __init__(
        self, admin_url: URL, process: subprocess.Popen[Any] | None = None, folder: Path | None = None
    ) -> None:
        self.admin_url = admin_url
        self.process = process
        self.folder = folder
        self._template: str | None = None

    def admin(self, statement: str) -> None:
        """Run a statement that may not be in a transaction."""
        engine = create_engine(self.admin_url, isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()

    def create_database(self, *, migrated: bool = True) -> str:
        """A fresh database; returns its URL. ``migrated``: with the span log's tables, copied from a template."""
        name = f"singletree_test_{uuid.uuid4().hex[:12]}"
        copied = f" TEMPLATE {self.template()}" if migrated else ""
        self.admin(f"CREATE DATABASE {name}{copied}")
        return self.url(name)

    def drop_database(self, url: str) -> None:
        """Drop it, whoever is still connected; a server of this run's own is removed whole instead."""
        if self.process is None:
            self.admin(f"DROP DATABASE IF EXISTS {make_url(url).database} WITH (FORCE)")

    def template(self) -> str:
        """The name of a migrated database that nobody connects to."""
        if self._template is None:
            from spanlog.database import open_database

            url = self.create_database(migrated=False)
            open_database(url, migrate=True).close()
            self._template = make_url(url).database
        assert self._template is not None
        return self._template

    def url(self, name: str) -> str:
        """The URL of a database on this server."""
        return self.admin_url.set(database=name).render_as_string(hide_password=False)

    def halt(self) -> None:
        """Stop a server that this run started, and keep its files for ``resume``."""
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        self.process.wait(20)

    def resume(self) -> None:
        """Start it again, and wait until it answers."""
        assert self.process is not None and self.folder is not None
        account: dict[str, Any] = unprivileged_account()
        with (self.folder / "log").open("ab") as output:
            self.process = subprocess.Popen(
                self.process.args, stdout=output, stderr=subprocess.STDOUT, cwd=self.folder, **account
            )
        wait_until_up(self, self.folder / "log")

    def stop(self) -> None:
        """Stop a server that this run started, and remove its files; drop the template on one that it did not."""
        if self.process is None:
            if self._template is not None:
                self.drop_database(self.url(self._template))
            return
        self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(10)
        if self.folder is not None:
            shutil.rmtree(self.folder, ignore_errors=True)


def find_binaries() -> Path | None:
    """The folder with ``initdb`` and ``postgres``: the newest that Debian installed, else the one on the path."""
    found = sorted(
        (path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/initdb")),
        key=lambda folder: float(folder.parent.name),
    )
    if found:
        return found[-1]
    on_path = shutil.which("initdb")
    return None if on_path is None else Path(on_path).resolve().parent


def unprivileged_account() -> dict[str, Any]:
    """How to start a child that is not root, which PostgreSQL refuses to run as; nothing for other users."""
    if os.geteuid() != 0:
        return {}
    for name in ("postgres", "nobody"):
        try:
            account = pwd.getpwnam(name)
        except KeyError:
            continue
        return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
    raise RuntimeError("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")


def free_port() -> int:
    """A port of the loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def start_server(binaries: Path) -> PostgresServer:
    """Make a cluster in a temporary folder and serve it on the loopback."""
    folder = Path(tempfile.mkdtemp(prefix="singletree-postgres-"))
    account = unprivileged_account()
    if account:
        os.chown(folder, account["user"], account["group"])
    data, log = folder / "data", folder / "log"
    common: dict[str, Any] = {"cwd": folder, "stdin": subprocess.DEVNULL, **account}
    initdb = [binaries / "initdb", "-D", data, "-U", "singletree", "-A", "trust", "-E", "UTF8", "--no-sync"]
    made = subprocess.run([*initdb, "--locale=C.UTF-8"], capture_output=True, text=True, **common)
    if made.returncode:
        raise RuntimeError(f"initdb failed: {made.stderr}")
    port = free_port()
    options = [part for setting in SETTINGS for part in ("-c", setting)]
    command = [binaries / "postgres", "-D", data, "-p", str(port), "-k", folder, *options]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, **common)
    server = PostgresServer(
        make_url(f"postgresql+psycopg://singletree@127.0.0.1:{port}/postgres"), process, folder
    )
    wait_until_up(server, log)
    return server


def wait_until_up(server: PostgresServer, log: Path) -> None:
    """Return once it answers. Raises RuntimeError with its log if it died or takes too long."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        try:
            server.admin("SELECT 1")
            return
        except OperationalError:
            dead = server.process is not None and server.process.poll() is not None
            if dead or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {log.read_text(errors='replace')}") from None
            time.sleep(0.1)


@functools.cache
def shared_server() -> PostgresServer:
    """The run's server, started by whoever asks first and stopped when the run ends."""
    given = os.environ.get("SINGLETREE_TEST_POSTGRES")
    if given:
        server = PostgresServer(make_url(given).set(drivername="postgresql+psycopg"))
    else:
        binaries = find_binaries()
        if binaries is None:
            raise RuntimeError(REMEDY)
        server = start_server(binaries)
    atexit.register(server.stop)
    return server


def require_postgres() -> PostgresServer:
    """The run's server; skips the test if that was asked for, and fails it if there is none."""
    if os.environ.get("SINGLETREE_SKIP_POSTGRES") == "1":
        pytest.skip("SINGLETREE_SKIP_POSTGRES=1")
    try:
        return shared_server()
    except RuntimeError as error:
        pytest.fail(str(error))


@pytest.fixture
def postgres_url() -> Iterator[str]:
    """A fresh, migrated database for one test; import it into a folder's conftest."""
    server = require_postgres()
    url = server.create_database()
    yield url
    server.drop_database(url)
