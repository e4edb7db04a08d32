"""I11 against a real vLLM: what it logs before and after each publish is what the trainer computes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine_fixture import EngineProcess
from tests.trainer.stages import RL
from tests.trainer.world import World
from trainer.daemon import Trainer
from trainer.errors import ParityFailed

pytestmark = pytest.mark.engine


@pytest.fixture
def engine_world(tmp_path: Path, base_weights: EngineProcess) -> Iterator[World]:
    world = World(tmp_path, base_weights.model)
    world.use_engine(base_weights.base_url)
    yield world
    world.close()


def test_the_engine_follows_the_trainer(engine_world: World) -> None:
    world = engine_world
    stages = [RL | {"name": name, "steps": 1, "lr": 3e-3} for name in ("first", "second", "third")]
    for count in (1, 2, 3):
        world.play(2, lambda group, index: float(index % 2))
        recipe = world.recipe(*stages[:count], publish={"allow_no_engine": False})
        Trainer(recipe, world.database, resume=count > 1).run()
    rows = world.step_rows()
    assert [row.version for row in rows] == [1, 2, 3]
    for row in rows:
        assert row.metrics["parity/tokens"] >= 30 and row.metrics["parity/gap_max"] < 2e-5
        assert row.metrics["staleness/max"] == 0.0


def test_an_engine_with_other_weights_is_found(engine_world: World, tmp_path: Path) -> None:
    from tests.tiny_model import build_tiny_model

    world = engine_world
    world.play(2, lambda group, index: float(index % 2))
    other = build_tiny_model(tmp_path / "other", seed=1)
    recipe = world.recipe(RL, model={"path": str(other), "autocast": "none", "threads": 1})
    with pytest.raises(ParityFailed):
        Trainer(recipe, world.database).run()
