"""A real vLLM for tests, started with the code and the settings that users get."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from singletree.engine.home import engine_home, installed
from singletree.engine.launch import EngineOptions
from singletree.engine.start import EngineServer, free_port

SERVED_NAME = "tiny"
WINDOW = 2048
KV_CACHE_BYTES = 128 << 20


class EngineProcess:
    """One vLLM on a free port, with its output in a file."""

    def __init__(self, model: Path, log: Path, **options: object) -> None:
        """``options`` are fields of ``EngineOptions``. Fails with the remedy if vLLM is not installed."""
        defaults = EngineOptions(
            model=model,
            name=SERVED_NAME,
            port=free_port(),
            dtype="float32",
            max_model_len=WINDOW,
            kv_cache_bytes=KV_CACHE_BYTES,
        )
        self.log = log
        self.server = EngineServer(replace(defaults, **options), installed(engine_home()), log=log)  # type: ignore[arg-type]

    @property
    def base_url(self) -> str:
        return self.server.base_url

    @property
    def model(self) -> Path:
        """The folder of the base weights."""
        return self.server.options.model

    @property
    def served_name(self) -> str:
        return self.server.options.served_name

    @property
    def pid(self) -> int:
        assert self.server.process is not None, "not running"
        return self.server.process.pid

    def launch(self) -> EngineProcess:
        """Starts it without waiting: two that start together take as long as one."""
        self.server.start()
        return self

    def wait(self) -> EngineProcess:
        self.server.wait_ready(timeout_s=280.0)
        return self

    def start(self) -> EngineProcess:
        return self.launch().wait()

    def stop(self) -> None:
        self.server.stop()

    def restart(self) -> None:
        """SIGKILL and a start on the same port: it serves its base weights again and labels them ``default``."""
        self.server.kill()
        self.start()
