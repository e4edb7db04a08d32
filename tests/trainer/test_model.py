"""Loading, saving and refusing models; folders that appear whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open

from tests.tiny_model import build_tiny_model
from tests.trainer.world import logprobs_of
from trainer.config import ModelConfig
from trainer.errors import ModelUnusable
from trainer.folders import remove_partial, whole_folder
from trainer.model import Model

PROMPT, COMPLETION = np.arange(20, 40, dtype=np.int32), np.arange(40, 50, dtype=np.int32)


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_what_is_written_loads_as_the_same_model(tmp_path: Path, tied: bool, dtype: str) -> None:
    model = Model(ModelConfig(path=str(build_tiny_model(tmp_path / "tiny", tied=tied)), autocast="none"))
    with torch.no_grad():
        for _, weight in model.trainable():
            weight.add_(0.01)
            weight.copy_(weight.bfloat16())  # values that both dtypes hold exactly
    with whole_folder(tmp_path / "out") as folder:
        model.write(folder, dtype)
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert ("lm_head.weight" in file.keys()) != tied  # noqa: SIM118 (not a mapping)
        assert {str(file.get_tensor(name).dtype) for name in file.keys()} == {f"torch.{dtype}"}  # noqa: SIM118
    again = Model(ModelConfig(path=str(tmp_path / "out"), autocast="none"))
    assert again.is_tied == tied
    assert np.array_equal(logprobs_of(model, PROMPT, COMPLETION), logprobs_of(again, PROMPT, COMPLETION))
    rendered = again.tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert "<|im_start|>user" in str(rendered)


def test_frozen_parts_stay_out_of_the_optimiser(tiny_model: Path) -> None:
    config = ModelConfig(path=str(tiny_model), autocast="none", freeze_embeddings=True, freeze_layers=1)
    names = [name for name, _ in Model(config).trainable()]
    assert names and all(name.startswith(("model.layers.1.", "model.norm")) for name in names)


def edited(folder: Path, source: Path, **changes: object) -> Path:
    """A copy of a model folder with other config entries."""
    folder.mkdir()
    for path in source.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_models_that_would_be_computed_wrongly_are_refused(tmp_path: Path, tiny_model: Path) -> None:
    scaled = edited(tmp_path / "scaled", tiny_model, logits_scaling=8.0)
    with pytest.raises(ModelUnusable, match="logits_scaling"):
        Model(ModelConfig(path=str(scaled), autocast="none"))
    sliding = edited(tmp_path / "sliding", tiny_model, layer_types=["full_attention", "sliding_attention"])
    with pytest.raises(ModelUnusable, match="share_prefix: false"):
        Model(ModelConfig(path=str(sliding), autocast="none"))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"freeze_embeddings": True, "freeze_layers": 3}, "has 2 layers"),
        ({"path": "/nowhere"}, "/nowhere"),
    ],
)
def test_mistakes_are_one_line(tiny_model: Path, changes: dict[str, object], says: str) -> None:
    config = ModelConfig.model_validate({"path": str(tiny_model), "autocast": "none"} | changes)
    with pytest.raises(ModelUnusable) as caught:
        Model(config)
    assert says in str(caught.value) and "\n" not in str(caught.value)


def test_emulated_bfloat16_is_refused_by_name(tiny_model: Path) -> None:
    config = ModelConfig(path=str(tiny_model), autocast="bfloat16")
    if config.multiplies_bfloat16:
        assert Model(config).logprobs is not None
        return
    with pytest.raises(ModelUnusable, match="autocast: auto"):
        Model(config)
    assert not ModelConfig(path=str(tiny_model)).rounds


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "new"
    with pytest.raises(RuntimeError), whole_folder(target) as folder:
        (folder / "half").write_text("x")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    for content in ("first", "second"):
        with whole_folder(target) as folder:
            (folder / "file").write_text(content)
    assert (target / "file").read_text() == "second"
    (tmp_path / ".old.1.partial").mkdir()
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
