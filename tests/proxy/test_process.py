"""``singletree serve`` as a process: killed under load, stopped under load, and refusing to start in one line."""

from __future__ import annotations

import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import pytest

from singletree.cli import main
from spanlog.database import Database
from spanlog.records import read_spans
from tests.proxy.conftest import chat_body, wait_for
from tests.proxy.fake_engine import MODEL, FakeEngine

SINGLETREE = Path(sys.executable).with_name("singletree")


class Process:
    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        self.folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SINGLETREE_")}
        self.process = subprocess.Popen(
            [str(SINGLETREE), "serve", "--database", f"sqlite:///{folder / 'spans.db'}", *arguments],
            env=kept | environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_until_up(self, port: int) -> httpx.Client:
        def up() -> bool:
            assert self.process.poll() is None, self.process.communicate()
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_for(up, timeout_s=30)
        keys = json.loads((self.folder / "keys.json").read_text())
        return httpx.Client(
            base_url=f"http://127.0.0.1:{port}",
            headers={"Authorization": f"Bearer {keys['admin']}"},
            trust_env=False,
            timeout=30,
        )

    def end(self) -> tuple[int, str]:
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Load:
    """Callers that note which of their calls were answered to the end."""

    def __init__(self, url: str, key: str, callers: int = 6) -> None:
        self.url, self.key = url, key
        self.answered: list[str] = []
        self.failed: list[str] = []
        self.stopped = threading.Event()
        self.threads = [threading.Thread(target=self._call, args=(number,)) for number in range(callers)]
        for thread in self.threads:
            thread.start()

    def _call(self, number: int) -> None:
        with httpx.Client(
            base_url=self.url, headers={"x-api-key": self.key}, trust_env=False, timeout=20
        ) as client:
            for turn in range(10**6):
                if self.stopped.is_set():
                    return
                marker, stream = f"call-{number}-{turn}", turn % 2 == 0
                body = chat_body(stream=stream) | {"messages": [{"role": "user", "content": marker}]}
                try:
                    response = client.post("/v1/chat/completions", json=body)
                except httpx.TransportError:
                    self.failed.append(marker)
                    return
                if response.status_code == 200 and '"finish_reason":"stop"' in response.text:
                    self.answered.append(marker)
                else:
                    self.failed.append(marker)

    def join(self) -> None:
        self.stopped.set()
        for thread in self.threads:
            thread.join(30)


def prepare(client: httpx.Client, engine: FakeEngine) -> tuple[str, str]:
    client.put("/api/policies/pol", json={"kind": "train", "model": MODEL}).raise_for_status()
    body: dict[str, Any] = {"policy": "pol", "base_url": engine.url}
    client.put("/api/engines/eng", json=body).raise_for_status()
    rollout = client.post("/api/rollouts", json={"policy": "pol", "task": {}}).json()["id"]
    return rollout, client.post(f"/api/rollouts/{rollout}/claim", json={"runner": "r"}).json()["key"]


def sqlite_file(folder: Path) -> str:
    return f"sqlite:///{folder / 'spans.db'}"


def recorded(url: str, rollout: str) -> list[str]:
    database = Database(url)
    try:
        with database.read() as conn:
            spans = read_spans(conn, [rollout])[rollout]
        return [span.request["messages"][0]["content"] for span in spans if span.status == "ok"]
    finally:
        database.close()


def test_a_kill_under_load_loses_no_answered_call(tmp_path: Path, fake: FakeEngine) -> None:
    port = free_port()
    server = Process(tmp_path, "--port", str(port), "--log-level", "warning")
    with server.wait_until_up(port) as client:
        rollout, key = prepare(client, fake)
        load = Load(str(client.base_url), key)
        wait_for(lambda: len(load.answered) > 100, timeout_s=20)
        server.process.send_signal(signal.SIGKILL)
        server.end()
        load.join()
    kept = recorded(sqlite_file(tmp_path), rollout)
    assert len(load.answered) > 100
    assert set(load.answered) <= set(kept)
    assert len(kept) == len(set(kept))
    with sqlite3.connect(tmp_path / "spans.db") as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    connection.close()


@pytest.mark.slow
@pytest.mark.parametrize("_time", range(10))
def test_ten_kills_under_load(tmp_path: Path, fake: FakeEngine, _time: int) -> None:
    test_a_kill_under_load_loses_no_answered_call(tmp_path, fake)


@pytest.mark.postgres
def test_a_kill_of_one_of_several_proxies_loses_no_answered_call(
    tmp_path: Path, fake: FakeEngine, postgres_url: str
) -> None:
    """Both serve one rollout from one PostgreSQL; the other goes on, and the killed one's successor takes over."""
    ports = [free_port(), free_port()]
    start = ["--database", postgres_url, "--log-level", "warning"]
    servers = [Process(tmp_path, *start, "--port", str(ports[0]))]
    with servers[0].wait_until_up(ports[0]) as client:
        rollout, key = prepare(client, fake)
        servers.append(Process(tmp_path, *start, "--port", str(ports[1])))
        with servers[1].wait_until_up(ports[1]) as other:
            loads = [Load(str(each.base_url), key, callers=3) for each in (client, other)]
            wait_for(lambda: all(len(load.answered) > 30 for load in loads), timeout_s=60)
            servers[0].process.send_signal(signal.SIGKILL)
            servers[0].end()
            loads[0].join()
            before = len(loads[1].answered)
            wait_for(lambda: len(loads[1].answered) > before + 10, timeout_s=30)
            loads[1].join()
            assert loads[1].failed == [], "the other proxy does not notice"
            successor = Process(tmp_path, *start, "--port", str(ports[0]))
            successor.wait_until_up(ports[0]).close()
            loads.append(Load(str(client.base_url), key, callers=1))
            wait_for(lambda: len(loads[2].answered) > 3, timeout_s=30)
            loads[2].join()
        for server in (servers[1], successor):
            server.process.send_signal(signal.SIGTERM)
            assert server.end()[0] == 0
    kept = recorded(postgres_url, rollout)
    assert {marker for load in loads for marker in load.answered} <= set(kept)


@pytest.mark.slow
@pytest.mark.postgres
@pytest.mark.parametrize("_time", range(10))
def test_ten_kills_of_one_of_several_proxies(
    tmp_path: Path, fake: FakeEngine, postgres_url: str, _time: int
) -> None:
    test_a_kill_of_one_of_several_proxies_loses_no_answered_call(tmp_path, fake, postgres_url)


def test_a_stop_under_load_lets_calls_finish(tmp_path: Path, fake: FakeEngine) -> None:
    fake.token_delay_s = 0.05
    port = free_port()
    server = Process(tmp_path, "--port", str(port), "--log-level", "warning")
    with server.wait_until_up(port) as client:
        rollout, key = prepare(client, fake)
        load = Load(str(client.base_url), key, callers=3)
        wait_for(lambda: len(load.answered) > 3, timeout_s=20)
        load.stopped.set()
        wait_for(lambda: fake.running > 0, timeout_s=2) if fake.running else None
        server.process.send_signal(signal.SIGTERM)
        code, errors = server.end()
        load.join()
    assert code == 0, errors
    assert load.failed == []
    assert set(load.answered) <= set(recorded(sqlite_file(tmp_path), rollout))


def test_keys_and_a_second_proxy(tmp_path: Path) -> None:
    """Keys are made once, for the owner's eyes only; one SQLite file takes one proxy, one port one listener."""
    port = free_port()
    first = Process(tmp_path, "--port", str(port))
    with first.wait_until_up(port) as client:
        assert client.get("/api/policies").status_code == 200
        assert (tmp_path / "keys.json").stat().st_mode & 0o777 == 0o600
        made = (tmp_path / "keys.json").read_text()
        code, errors = Process(tmp_path, "--port", "0", "--log-level", "error").end()
        assert code != 0
        assert errors.startswith("error: another proxy") and errors.count("\n") == 1
    first.process.send_signal(signal.SIGTERM)
    code, errors = first.end()
    assert code == 0
    assert not any(key in errors for key in json.loads(made).values()), "no secret in the log"
    second = Process(tmp_path, "--port", str(port))
    second.wait_until_up(port).close()
    second.process.send_signal(signal.SIGTERM)
    assert second.end()[0] == 0
    assert (tmp_path / "keys.json").read_text() == made


def test_a_policy_is_made_with_the_key_that_lies_here(tmp_path: Path) -> None:
    port = free_port()
    server = Process(tmp_path, "--port", str(port), "--log-level", "warning")
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SINGLETREE_")}
    with server.wait_until_up(port) as client:
        command = [str(SINGLETREE), "policy", "mine", "--group-size", "4", "--rollouts-per-step", "16"]
        ask = [*command, "--proxy", str(client.base_url)]
        done = subprocess.run(ask, cwd=tmp_path, env=kept, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout == "policy mine: train, model mine, version 0\n"
        made = client.get("/api/policies/mine").json()
        assert (made["group_size"], made["rollouts_per_step"]) == (4, 16)
        again = subprocess.run([*ask, "--frozen"], cwd=tmp_path, env=kept, capture_output=True, text=True)
        assert again.returncode == 8
        assert again.stderr.startswith("error: the proxy refused: ") and again.stderr.count("\n") == 1
    server.process.send_signal(signal.SIGTERM)
    assert server.end()[0] == 0


def run_main(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str]:
    """``singletree serve`` in this process, for what ends before it serves."""
    monkeypatch.setattr(sys, "argv", ["singletree", "serve", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert isinstance(ended.value.code, int)
    return ended.value.code, capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--host", "0.0.0.0"], {}, "SINGLETREE_ADMIN_KEY"),
        (["--database", "sqlite:////nowhere/at/all.db"], {}, "nowhere"),
        (["--database", "mysql://x/y"], {}, "sqlite:///file"),
        (["--port", "99999"], {}, "PORT"),
        ([], {"SINGLETREE_MAX_BODY_BYTES": "many"}, "SINGLETREE_MAX_BODY_BYTES"),
        (["--log-level", "loud"], {}, "debug"),
        (["--host", "no.such.host.invalid"], {}, "--host"),
        (["--keys-file", "/nowhere/keys.json"], {}, "--keys-file"),
        ([], {"SINGLETREE_ADMIN_KEY": "same", "SINGLETREE_RUNNER_KEY": "same"}, "runner"),
    ],
)
def test_mistakes_end_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    environment: dict[str, str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    options = arguments if "--port" in arguments else ["--port", "0", *arguments]
    code, errors = run_main(options, monkeypatch, capsys)
    assert code > 0
    assert errors.startswith("error: ") and words in errors
    assert len(errors.strip().splitlines()) == 1


def test_a_taken_port(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        code, errors = run_main(["--port", str(taken.getsockname()[1])], monkeypatch, capsys)
    assert code == 3
    assert "is taken" in errors and len(errors.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == [], "nothing half-written"


def test_a_locked_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SINGLETREE_BUSY_TIMEOUT_S", "0.2")
    lock = sqlite3.connect(tmp_path / "singletree.db", isolation_level=None)
    try:
        lock.execute("BEGIN IMMEDIATE")
        code, errors = run_main(["--port", "0"], monkeypatch, capsys)
    finally:
        lock.close()
    assert code == 3
    assert errors.startswith("error: ") and len(errors.strip().splitlines()) == 1
