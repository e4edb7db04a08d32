"""Recipes are refused in one line that names the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from trainer.config import RlStage, load_recipe
from trainer.errors import RecipeError

RL: dict[str, Any] = {"name": "skill", "objective": "rl", "steps": 2, "groups_per_step": 2, "lr": 1e-3}
SFT: dict[str, Any] = RL | {
    "name": "form",
    "objective": "sft",
    "source_policy": "t",
    "rollouts": 4,
    "batch": 2,
}
del SFT["groups_per_step"]
RECIPE: dict[str, Any] = {"policy": "p", "output": "out", "model": {"path": "m"}, "stages": [SFT, RL]}


def load(folder: Path, recipe: Any) -> str:
    path = folder / "recipe.yaml"
    path.write_text(recipe if isinstance(recipe, str) else yaml.safe_dump(recipe))
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_a_good_recipe_loads(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump(RECIPE))
    assert [stage.name for stage in load_recipe(path).stages] == ["form", "skill"]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"colour": 1}, "colour: unknown key"),
        ({"model": {"path": "m", "colour": 1}}, "model.colour: unknown key"),
        ({"stages": [RL | {"colour": 1}]}, "stages.0.colour: unknown key"),
        ({"stages": [SFT | {"groups_per_step": 1}]}, "stages.0.groups_per_step: unknown key"),
        (
            {"stages": [RL | {"correction": {"kind": "none", "cap": 2}}]},
            "stages.0.correction.cap: unknown key",
        ),
        ({"stages": [RL | {"lr": "fast"}]}, "stages.0.lr"),
        ({"stages": [RL | {"objective": "magic"}]}, "stages.0"),
        ({"stages": []}, "stages"),
        ({"stages": [RL, RL]}, "different names"),
        ({"stages": [SFT | {"batch": 5}]}, "batch (5) is larger than rollouts (4)"),
        ({"model": {}}, "model.path: is missing"),
        ({"model": {"path": "m", "gradient_checkpointing": True}}, "share_prefix: false"),
        ({"model": {"path": "m", "dtype": "bfloat16", "autocast": "bfloat16"}}, "autocast"),
        ({"model": {"path": "m", "freeze_layers": 2}}, "freeze_embeddings"),
    ],
)
def test_a_bad_recipe_is_refused_by_name(tmp_path: Path, changes: dict[str, Any], says: str) -> None:
    assert says in load(tmp_path, RECIPE | changes)


def test_broken_files_are_refused(tmp_path: Path) -> None:
    assert "not valid YAML" in load(tmp_path, "a: [")
    assert "mapping" in load(tmp_path, "- a")
    with pytest.raises(RecipeError, match="no recipe at"):
        load_recipe(tmp_path / "none.yaml")


def test_learning_rates_by_hand() -> None:
    stage = RlStage.model_validate(
        RL | {"steps": 8, "lr": 1.0, "warmup_steps": 2, "warmup_power": 2, "decay": "second_half"}
    )
    rates = [stage.learning_rate(step) for step in range(8)]
    assert rates == pytest.approx([0.25, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25])
