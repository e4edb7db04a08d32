"""The recipes that come along are read by the code as it is, and one without a database takes the proxy's variable."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.house.tree import ROOT
from trainer.config import load_recipe


@pytest.mark.parametrize("path", sorted((ROOT / "recipes").glob("*.yaml")), ids=lambda path: path.name)
def test_a_recipe_that_comes_along_loads(path: Path) -> None:
    assert load_recipe(path).stages


def test_a_password_stays_out_of_the_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    url = "postgresql://singletree:secret@postgres/singletree"
    monkeypatch.setenv("SINGLETREE_DATABASE_URL", url)
    assert load_recipe(ROOT / "recipes/compose.yaml").database == url
