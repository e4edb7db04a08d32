"""One warm vLLM with real Qwen3 tokens for all harness tests, and a fresh proxy for each test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness_adapters.errors import HarnessMissing
from tests.engine_fixture import EngineProcess
from tests.harnesses.qwen3_model import build_qwen3
from tests.harnesses.world import HAS_EXACT_MODE, World, open_world, start_engine


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model's folder."""
    try:
        return build_qwen3(tmp_path_factory.mktemp("qwen3"))
    except HarnessMissing as error:
        pytest.fail(f"the Qwen3 tokenizer is missing: {error}")


@pytest.fixture(scope="session")
def qwen3_engine(qwen3: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineProcess]:
    engine = start_engine(qwen3, tmp_path_factory.mktemp("qwen3-engine") / "vllm.log")
    try:
        yield engine.wait()
    finally:
        engine.stop()


@pytest.fixture
def world(qwen3_engine: EngineProcess, tmp_path: Path) -> Iterator[World]:
    """In exact mode, where the proxy has it."""
    with open_world(qwen3_engine, tmp_path / "spans.db", exact=HAS_EXACT_MODE) as world:
        yield world


@pytest.fixture
def observing(qwen3_engine: EngineProcess, tmp_path: Path) -> Iterator[World]:
    """In observe mode: the engine renders each prompt anew."""
    with open_world(qwen3_engine, tmp_path / "observed.db", exact=False) as world:
        yield world
