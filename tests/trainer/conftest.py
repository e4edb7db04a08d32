"""What all trainer tests share: torch on one thread, so that they stay polite on two cores, and a world to train in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.trainer.world import World


@pytest.fixture(scope="package", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def world(tmp_path: Path, tiny_model: Path) -> Iterator[World]:
    made = World(tmp_path, tiny_model)
    yield made
    made.close()
