"""[I3] A database that is full, moved away or down: calls fail clearly, none is half-recorded, and nobody mends by hand."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from sqlalchemy import event, func, select, text

from spanlog.models import Blob, Span
from tests.postgres_server import find_binaries, require_postgres, start_server
from tests.proxy.conftest import Served, chat_body, serve, wait_for
from tests.proxy.fake_engine import FakeEngine

CODES = {"span_not_committed", "span_log"}


def served(proxy: Served, fake: FakeEngine) -> tuple[str, str]:
    proxy.policy(mode="observe")
    proxy.engine(fake)
    return proxy.rollout()


class Calls:
    """Calls one after the other, and which of them were answered."""

    def __init__(self, proxy: Served, key: str, size: int = 10) -> None:
        self.proxy, self.key, self.size = proxy, key, size
        self.chance = random.Random(1)
        self.answered: list[str] = []
        self.refused: list[str] = []

    def one(self) -> bool:
        marker = f"{len(self.answered)}-{len(self.refused)}-{self.chance.randbytes(self.size).hex()}"
        stream = self.chance.random() < 0.5
        body = chat_body(stream=stream) | {"messages": [{"role": "user", "content": marker}]}
        response = self.proxy.http.post("/v1/chat/completions", json=body, headers={"x-api-key": self.key})
        if response.status_code == 200 and '"finish_reason":"stop"' in response.text:
            self.answered.append(marker)
            return True
        assert response.status_code == (200 if stream and "data:" in response.text else 503), response.text
        assert any(code in response.text for code in CODES), response.text
        assert '"finish_reason":"stop"' not in response.text
        self.refused.append(marker)
        return False

    def check(self, rollout: str) -> None:
        """What was answered is there, and nothing is there in part."""
        kept = [span.request["messages"][0]["content"] for span in self.proxy.spans(rollout)]
        assert set(self.answered) <= set(kept), "an answered call was lost"
        assert len(kept) == len(set(kept))
        with self.proxy.database.read() as conn:
            spans = conn.execute(select(func.count()).select_from(Span)).scalar_one()
            names = (Span.request_hash, Span.reply_hash, Span.messages_delta, Span.tools_hash)
            named = {value for name in names for value in conn.execute(select(name)).scalars() if value}
            assert named == set(conn.execute(select(Blob.hash)).scalars()), "no blob without a span"
        assert spans == len(kept)


def test_a_full_disk_on_sqlite(sqlite_url: str, fake: FakeEngine) -> None:
    with serve(sqlite_url) as proxy:
        rollout, key = served(proxy, fake)
        calls = Calls(proxy, key, size=30_000)
        assert calls.one()

        def limit(connection: Any) -> None:
            pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
            connection.exec_driver_sql(f"PRAGMA max_page_count={pages + full['room']}")

        full = {"room": 0}
        event.listen(proxy.database.engine, "begin", limit)
        assert [calls.one() for _ in range(4)] == [False] * 4
        assert proxy.http.get("/api/policies", headers={"Authorization": "Bearer st-admin-test"}).is_success
        full["room"] = 10_000
        assert [calls.one() for _ in range(4)] == [True] * 4
        calls.check(rollout)


@pytest.mark.parametrize("how", ["moved", "removed"])
def test_a_file_that_is_gone(sqlite_url: str, fake: FakeEngine, how: str, tmp_path: Path) -> None:
    """Its folder was moved away and is moved back; or the file was removed, and a copy is put in its place."""
    folder = tmp_path / "log"
    folder.mkdir()
    file = folder / "spans.db"
    file.write_bytes((tmp_path / "spans.db").read_bytes())
    with serve(f"sqlite:///{file}") as proxy:
        rollout, key = served(proxy, fake)
        calls = Calls(proxy, key)
        assert [calls.one() for _ in range(3)] == [True] * 3
        copy = b""
        if how == "moved":
            folder.rename(tmp_path / "away")
        else:
            with proxy.database.begin() as conn:
                conn.exec_driver_sql("COMMIT")
                conn.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
                conn.exec_driver_sql("BEGIN IMMEDIATE")
            copy = file.read_bytes()
            for path in folder.glob("spans.db*"):
                if "proxy.lock" not in path.name:
                    path.unlink()
        assert [calls.one() for _ in range(4)] == [False] * 4
        assert not file.exists(), "no empty file is put in its place"
        if how == "moved":
            (tmp_path / "away").rename(folder)
        else:
            file.write_bytes(copy)
        wait_for(calls.one)
        assert [calls.one() for _ in range(3)] == [True] * 3
        calls.check(rollout)


@pytest.mark.postgres
def test_a_postgresql_that_goes_down_and_comes_back(fake: FakeEngine) -> None:
    require_postgres()
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("only a server that this test started can be stopped")
    server = start_server(binaries)
    try:
        with serve(server.create_database(migrated=False)) as proxy:
            rollout, key = served(proxy, fake)
            calls = Calls(proxy, key)
            assert [calls.one() for _ in range(5)] == [True] * 5
            for _ in range(2):
                server.halt()
                assert [calls.one() for _ in range(4)] == [False] * 4
                server.resume()
                wait_for(calls.one)
                assert [calls.one() for _ in range(5)] == [True] * 5
            calls.check(rollout)
    finally:
        server.stop()


@contextmanager
def small_disk(folder: Path) -> Iterator[None]:
    """A file system of 24 MB; needs root, and skips without."""
    command = ["mount", "-t", "tmpfs", "-o", "size=24m,mode=0777", "tmpfs", str(folder)]
    if os.geteuid() != 0 or subprocess.run(command, capture_output=True).returncode:
        pytest.skip("mounting a small file system needs root")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.mark.postgres
def test_a_full_disk_on_postgresql(fake: FakeEngine) -> None:
    require_postgres()
    binaries = find_binaries()
    if binaries is None:
        pytest.skip("only a server of this machine has a disk that can be filled here")
    server = start_server(binaries)
    assert server.folder is not None
    disk = server.folder / "disk"
    disk.mkdir()
    try:
        with small_disk(disk):
            space = disk / "space"
            space.mkdir(mode=0o700)
            owner = (server.folder / "data").stat()
            os.chown(space, owner.st_uid, owner.st_gid)
            server.admin(f"CREATE TABLESPACE small LOCATION '{space}'")
            server.admin("CREATE DATABASE small TABLESPACE small")
            with serve(server.url("small")) as proxy:
                rollout, key = served(proxy, fake)
                calls = Calls(proxy, key, size=200_000)
                wait_for(lambda: not calls.one(), timeout_s=60)
                assert not calls.one() and calls.answered
                subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
                wait_for(calls.one)
                assert [calls.one() for _ in range(5)] == [True] * 5
                calls.check(rollout)
                with proxy.database.read() as conn:
                    assert conn.execute(text("SELECT 1")).scalar_one() == 1
            server.admin("DROP DATABASE small WITH (FORCE)")
            server.admin("DROP TABLESPACE small")
            server.halt()
    finally:
        server.stop()


def test_a_key_that_is_not_remembered_needs_the_database(
    sqlite_url: str, fake: FakeEngine, tmp_path: Path
) -> None:
    """503 with ``span_log``, before any engine is asked."""
    with serve(sqlite_url, key_cache_s=0.0) as proxy:
        _, key = served(proxy, fake)
        fake.requests.clear()
        (tmp_path / "spans.db").rename(tmp_path / "away.db")
        response: httpx.Response = proxy.chat(key)
        (tmp_path / "away.db").rename(tmp_path / "spans.db")
        assert (response.status_code, response.json()["error"]["code"]) == (503, "span_log")
        assert fake.requests == [] and proxy.chat(key).status_code == 200
