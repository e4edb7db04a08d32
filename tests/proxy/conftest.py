"""A served proxy in this process, over a fake engine, on SQLite or on real PostgreSQL."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from pydantic import SecretStr

from proxy.app import create_app
from proxy.server import bind
from proxy.settings import Settings
from spanlog.database import Database, open_database
from spanlog.records import SpanRecord, read_spans
from tests.postgres_server import postgres_url
from tests.proxy.fake_engine import MODEL, FakeEngine

__all__ = ["postgres_url"]

ADMIN, RUNNER = "st-admin-test", "st-runner-test"


class Served:
    """A running proxy and the calls that tests make to it."""

    def __init__(self, url: str, database: Database, app: Any) -> None:
        self.url = url
        self.database = database
        self.app = app
        self.http = httpx.Client(base_url=url, trust_env=False, timeout=30)

    def api(
        self, method: str, path: str, body: Any = None, *, key: str = ADMIN, **options: Any
    ) -> httpx.Response:
        return self.http.request(
            method, path, json=body, headers={"Authorization": f"Bearer {key}"}, **options
        )

    def ok(self, method: str, path: str, body: Any = None, **options: Any) -> Any:
        response = self.api(method, path, body, **options)
        assert response.status_code < 300, response.text
        return response.json() if response.content else None

    def policy(self, policy: str = "pol", **fields: Any) -> Any:
        return self.ok("PUT", f"/api/policies/{policy}", {"kind": "train", "model": MODEL, **fields})

    def engine(
        self, engine: FakeEngine, policy: str = "pol", engine_id: str = "eng", kind: str = "vllm"
    ) -> Any:
        return self.ok(
            "PUT",
            f"/api/engines/{engine_id}",
            {"policy": policy, "base_url": engine.url + "/v1", "kind": kind},
        )

    def rollout(self, policy: str = "pol", purpose: str = "train") -> tuple[str, str]:
        """A claimed rollout: its id and its agent key."""
        body = {"policy": policy, "task": {"payload": {"x": 1}}, "purpose": purpose}
        rollout = self.ok("POST", "/api/rollouts", body)["id"]
        return rollout, self.ok("POST", f"/api/rollouts/{rollout}/claim", {"runner": "r"})["key"]

    def chat(self, key: str, **fields: Any) -> httpx.Response:
        return self.http.post("/v1/chat/completions", json=chat_body(**fields), headers={"x-api-key": key})

    def spans(self, rollout: str) -> list[SpanRecord]:
        with self.database.read() as conn:
            return read_spans(conn, [rollout]).get(rollout, [])

    def span(self, rollout: str) -> SpanRecord:
        """The rollout's only span; waits for it, since one of a call that broke off is written in its own time."""
        wait_for(lambda: self.spans(rollout))
        spans = self.spans(rollout)
        assert len(spans) == 1
        return spans[0]


def chat_body(**fields: Any) -> dict[str, Any]:
    return {"model": "my-model", "messages": [{"role": "user", "content": "hi"}], **fields}


def wait_for(condition: Callable[[], Any], timeout_s: float = 10.0) -> Any:
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.01)
    return value


@contextmanager
def serve(url: str, **fields: Any) -> Iterator[Served]:
    """A proxy on the database at ``url``, on a free port, in a thread."""
    settings = Settings(
        **{
            "database_url": url,
            "port": 0,
            "admin_key": SecretStr(ADMIN),
            "runner_key": SecretStr(RUNNER),
            "key_cache_s": 0.2,
            "engine_poll_s": 0.2,
            "sweep_s": 0.1,
            **fields,
        }
    )
    database = open_database(url, migrate=True)
    listener = bind(settings)
    app = create_app(settings, database)
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        proxy_headers=False,
        log_config=None,
        timeout_graceful_shutdown=3,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    served = Served("http://{}:{}".format(*listener.getsockname()[:2]), database, app)
    try:
        wait_for(lambda: server.started or not thread.is_alive())
        yield served
    finally:
        served.http.close()
        server.should_exit = True
        thread.join(20)
        listener.close()
        database.close()


@pytest.fixture
def fake() -> Iterator[FakeEngine]:
    engine = FakeEngine().start()
    try:
        yield engine
    finally:
        engine.stop()


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated file to copy: migrating one for each test would take longer than the tests."""
    path = tmp_path_factory.mktemp("empty") / "spans.db"
    open_database(f"sqlite:///{path}", migrate=True).close()
    return path


@pytest.fixture
def sqlite_url(empty_database: Path, tmp_path: Path) -> str:
    shutil.copy(empty_database, tmp_path / "spans.db")
    return f"sqlite:///{tmp_path / 'spans.db'}"


@pytest.fixture
def proxy(sqlite_url: str) -> Iterator[Served]:
    with serve(sqlite_url) as served:
        yield served


@pytest.fixture
def ready(proxy: Served, fake: FakeEngine) -> Served:
    """A proxy with a training policy on the fake engine."""
    proxy.policy()
    proxy.engine(fake)
    fake.requests.clear()
    fake.rendered.clear()
    return proxy


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def any_proxy(request: pytest.FixtureRequest) -> Iterator[Served]:
    """A proxy on each kind of database."""
    url = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    with serve(url) as served:
        yield served


@pytest.fixture(scope="module")
def standing(empty_database: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standing]:
    """One proxy and one engine for a module's many small tests: building them takes longer than most. The module's own
    ``ready`` and ``fake`` come from it, see ``Standing.calm``."""
    path = tmp_path_factory.mktemp("standing") / "spans.db"
    shutil.copy(empty_database, path)
    fake = FakeEngine().start()
    try:
        with serve(f"sqlite:///{path}") as proxy:
            proxy.policy()
            proxy.engine(fake)
            yield Standing(proxy, fake)
    finally:
        fake.stop()


@dataclass
class Standing:
    proxy: Served
    fake: FakeEngine

    def calm(self) -> Standing:
        """Nothing is wrong and nothing was asked."""
        self.fake.fault = None
        self.fake.requests.clear()
        return self
