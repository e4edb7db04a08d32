"""Fixtures that many folders share: one warm vLLM for the whole run, and more of them on demand."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import structlog

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.engine_fixture import EngineProcess

StartEngine = Callable[..., EngineProcess]
"""``start_engine(model_folder, **fields of EngineOptions)``: a vLLM, launched and not waited for (see its ``wait``),
that is stopped when the test's module ends."""


@pytest.fixture(autouse=True)
def default_logs() -> Iterator[None]:
    """A command that runs inside a test points the logs at that test's captured stderr, which is closed after it."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the tiny untied float32 model (seed 0) that ``engine`` starts with. Read it only."""
    from tests.tiny_model import build_tiny_model

    return build_tiny_model(tmp_path_factory.mktemp("model") / "tiny", seed=0)


@pytest.fixture(scope="session")
def engine(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    """One warm vLLM for the run. Its weights are whatever the last publish left; see ``base_weights``."""
    process = EngineProcess(tiny_model, tmp_path_factory.mktemp("engine") / "vllm.log")
    try:
        yield process.start()
    finally:
        process.stop()


@pytest.fixture
def base_weights(engine: EngineProcess) -> EngineProcess:
    """``engine`` with its base weights loaded, the label ``default``, no cached prefixes, and running: a fresh start
    without the 20 s that one costs."""
    import httpx

    with httpx.Client(base_url=engine.base_url, timeout=60.0, trust_env=False) as client:
        client.post("/pause", params={"mode": "abort"}).raise_for_status()
        body = {"method": "singletree_load", "kwargs": {"folder": str(engine.model)}}
        client.post("/collective_rpc", json=body).raise_for_status()
        client.post("/update_weight_version", json={"new_version": "default"}).raise_for_status()
        client.post("/resume").raise_for_status()
    return engine


@pytest.fixture(scope="module")
def start_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartEngine]:
    """Starts further engines, for tests that break one or need other weights; 15 to 20 s each, so share them."""
    running: list[EngineProcess] = []

    def start(model: Path, **options: object) -> EngineProcess:
        process = EngineProcess(model, tmp_path_factory.mktemp("engine") / "vllm.log", **options)
        running.append(process)
        return process.launch()

    yield start
    for process in running:
        process.stop()
