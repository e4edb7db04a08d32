"""What is told from files alone, without an engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save

from trainer.publish.errors import WeightsInvalid
from trainer.publish.validate import read_headers, relative_change, shapes_of, validate_weights
from trainer.publish.weights import find_difference, is_visible_change

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"


def write(folder: Path, weights: dict[str, torch.Tensor], *, tied: bool = False) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_bytes(save(weights))
    (folder / "config.json").write_text(json.dumps({"tie_word_embeddings": tied}))
    return folder


def two_tensors() -> dict[str, torch.Tensor]:
    return {EMBEDDING: torch.arange(12.0).reshape(3, 4), "model.norm.weight": torch.ones(4)}


def test_whole_weights_pass(tmp_path: Path) -> None:
    folder = write(tmp_path / "w", two_tensors())
    validate_weights(folder, {EMBEDDING: ((3, 4), "float32"), "model.norm.weight": ((4,), "float32")})


def test_a_tied_head_may_be_there_only_if_it_equals_the_embedding(tmp_path: Path) -> None:
    weights = two_tensors()
    expected = shapes_of(write(tmp_path / "without", weights, tied=True))
    with_head = write(tmp_path / "with", weights | {HEAD: weights[EMBEDDING].clone()}, tied=True)
    validate_weights(with_head, expected)
    validate_weights(tmp_path / "without", shapes_of(with_head))
    other = write(tmp_path / "other", weights | {HEAD: weights[EMBEDDING] + 1}, tied=True)
    with pytest.raises(WeightsInvalid, match=f"{HEAD} differs"):
        validate_weights(other, expected)
    untied = write(tmp_path / "untied", weights | {HEAD: weights[EMBEDDING].clone()})
    with pytest.raises(WeightsInvalid, match=f"{HEAD} not known"):
        validate_weights(untied, expected)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_one_value_that_is_not_finite_is_enough(tmp_path: Path, value: float, dtype: torch.dtype) -> None:
    weights = {name: tensor.to(dtype) for name, tensor in two_tensors().items()}
    weights[EMBEDDING][2, 3] = value
    folder = write(tmp_path / "w", weights)
    with pytest.raises(WeightsInvalid, match=f"{EMBEDDING} has values that are not finite"):
        validate_weights(folder, shapes_of(folder))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_a_file_cut_off_anywhere_is_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = write(tmp_path_factory.mktemp("cut"), two_tensors())
    file = folder / "model.safetensors"
    whole = file.read_bytes()
    file.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(WeightsInvalid, match="damaged or cut off"):
        read_headers(folder)


def test_shards_are_read_as_one_and_never_twice(tmp_path: Path) -> None:
    weights = two_tensors()
    write(tmp_path, {EMBEDDING: weights[EMBEDDING]})
    (tmp_path / "second.safetensors").write_bytes(save({"model.norm.weight": torch.ones(4)}))
    assert read_headers(tmp_path).keys() == weights.keys()
    (tmp_path / "third.safetensors").write_bytes(save({"model.norm.weight": torch.ones(4)}))
    with pytest.raises(WeightsInvalid, match="is in both"):
        read_headers(tmp_path)


def test_what_no_engine_takes_is_refused(tmp_path: Path) -> None:
    folder = write(tmp_path, {"x": torch.zeros(2, dtype=torch.complex64)})
    with pytest.raises(WeightsInvalid, match="cannot be published"):
        read_headers(folder)


def test_the_probe_must_change_only_where_rounding_cannot_hide_the_change(tmp_path: Path) -> None:
    old = write(tmp_path / "old", two_tensors())
    far = write(tmp_path / "far", {name: value * 1.01 for name, value in two_tensors().items()})
    near = write(tmp_path / "near", {name: value * (1 + 1e-6) for name, value in two_tensors().items()})
    assert relative_change(old, old) == 0.0
    assert relative_change(old, far) == pytest.approx(0.01, rel=1e-3)
    assert is_visible_change(old, far) and not is_visible_change(old, near)
    assert not is_visible_change(tmp_path / "gone", far)


def test_models_are_told_apart_by_what_shapes_them() -> None:
    ours = {"hidden_size": 64, "vocab_size": 1024, "rope_theta": 1.0}
    assert find_difference(ours, {"hidden_size": 64, "rope_theta": 2.0}) is None
    assert "hidden_size is 128 there and 64" in (find_difference(ours, {"hidden_size": 128}) or "")
