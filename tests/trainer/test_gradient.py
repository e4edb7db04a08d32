"""I9 and I10 on a real, tiny transformer in float32: what must leave the gradient unchanged, and what it must be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trainer.config import ModelConfig, RlStage
from trainer.data.packing import pack
from trainer.data.samples import RolloutData, Sample, Turn, build_samples
from trainer.model import Model
from trainer.objectives import rl, sft

Gradient = dict[str, torch.Tensor]
NORMALIZATIONS = ["token", "rollout"]


@pytest.fixture(scope="module")
def model(tiny_model: Path) -> Model:
    return Model(ModelConfig(path=str(tiny_model), autocast="none"))


def stage(**changes: Any) -> RlStage:
    base = {"name": "s", "objective": "rl", "steps": 1, "lr": 0.0, "groups_per_step": 3, "micro_batch": 64}
    return RlStage.model_validate(base | changes)


def make_groups(seed: int = 0, shared: int = 24) -> list[list[RolloutData]]:
    """Three groups of three rollouts of two to three turns, lengths and temperatures mixed; the last has no signal."""
    rng = np.random.default_rng(seed)
    system = rng.integers(5, 300, shared)
    groups = []
    for group in range(3):
        rollouts = []
        for index in range(3):
            prompt, turns = np.concatenate([system, rng.integers(5, 300, 3 + group)]).astype(np.int32), []
            for number in range(2 + index % 2):
                size = int(rng.integers(1, 7))
                completion = rng.integers(5, 300, size).astype(np.int32)
                logged = rng.normal(-6.0, 0.5, size).astype(np.float32)
                zeros = np.zeros(size, np.int32)
                turns.append(
                    Turn(
                        f"{group}{index}{number}",
                        prompt,
                        completion,
                        logged,
                        zeros,
                        zeros,
                        0.7 + 0.1 * group,
                    )
                )
                prompt = np.concatenate([prompt, completion, rng.integers(5, 300, 3)]).astype(np.int32)
            rollouts.append(
                RolloutData(f"r{group}{index}", 1.0 if group == 2 else float(index == 0) + 0.3 * group, turns)
            )
        groups.append(rollouts)
    return groups


def gradient_of(model: Model, batch: rl.RlBatch, wanted: RlStage, *, share: bool = True) -> Gradient:
    model.network.zero_grad()
    packed = pack(
        batch.samples, max_rows=wanted.micro_batch, max_tokens=wanted.micro_batch_tokens, share=share
    )
    rl.backward(model, packed, batch, wanted)
    return {name: weight.grad.clone() for name, weight in model.trainable() if weight.grad is not None}


def assert_same(left: Gradient, right: Gradient) -> None:
    assert left.keys() == right.keys()
    scale = max(float(value.abs().max()) for value in left.values())
    assert scale > 1e-4
    worst = max(float((left[name] - right[name]).abs().max()) for name in left)
    assert worst <= 1e-5 * scale


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("zero_variance", ["drop", "keep"])
def test_micro_batches_packing_and_order_leave_the_gradient_unchanged(
    model: Model, normalization: str, zero_variance: str
) -> None:
    settings = {"normalization": normalization, "zero_variance": zero_variance}
    groups = make_groups()
    reference = gradient_of(model, rl.prepare(groups, stage(**settings), [0]), stage(**settings), share=False)
    for changes in ({"micro_batch": 1}, {"micro_batch": 4}, {"micro_batch_tokens": 120}, {"micro_batch": 64}):
        wanted = stage(**settings, **changes)
        assert_same(reference, gradient_of(model, rl.prepare(groups, wanted, [0]), wanted))
    backwards = [
        [replace(r, turns=list(reversed(r.turns))) for r in reversed(group)] for group in reversed(groups)
    ]
    assert_same(
        reference, gradient_of(model, rl.prepare(backwards, stage(**settings), [0]), stage(**settings))
    )


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_splitting_a_rollout_changes_no_advantage_and_no_gradient(model: Model, normalization: str) -> None:
    wanted, groups = stage(normalization=normalization), make_groups()
    whole = rl.prepare(groups, wanted, [0])
    rollouts = [rollout for group in groups for rollout in group]
    row_per_turn: list[list[Sample]] = [
        [sample for turn in rollout.turns for sample in build_samples(index, [turn])[0]]
        for index, rollout in enumerate(rollouts)
    ]
    split = rl.assemble(groups, row_per_turn, wanted, [0])
    assert len(split.samples) > 1.5 * len(whole.samples)
    assert split.advantages == whole.advantages
    assert split.weights == pytest.approx(whole.weights)
    assert_same(gradient_of(model, whole, wanted), gradient_of(model, split, wanted))


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_one_call_logged_as_two_changes_nothing(model: Model, normalization: str) -> None:
    wanted, groups = stage(normalization=normalization), make_groups()
    halved = [
        [
            replace(rollout, turns=[half for turn in rollout.turns for half in halves(turn)])
            for rollout in group
        ]
        for group in groups
    ]
    whole, split = rl.prepare(groups, wanted, [0]), rl.prepare(halved, wanted, [0])
    assert split.advantages == whole.advantages
    assert_same(gradient_of(model, whole, wanted), gradient_of(model, split, wanted))


def halves(turn: Turn) -> Sequence[Turn]:
    cut = len(turn.completion) // 2
    if cut == 0 or turn.logprobs is None or turn.version_low is None or turn.version_high is None:
        return [turn]
    first = replace(
        turn,
        id=turn.id + "a",
        completion=turn.completion[:cut],
        logprobs=turn.logprobs[:cut],
        version_low=turn.version_low[:cut],
        version_high=turn.version_high[:cut],
    )
    second = replace(
        turn,
        id=turn.id + "b",
        prompt=np.concatenate([turn.prompt, turn.completion[:cut]]),
        completion=turn.completion[cut:],
        logprobs=turn.logprobs[cut:],
        version_low=turn.version_low[cut:],
        version_high=turn.version_high[cut:],
    )
    return [first, second]


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_the_gradient_is_that_of_the_formula(model: Model, normalization: str) -> None:
    """Against plain transformers, token by token, with the formula written out."""
    wanted, groups = stage(normalization=normalization), make_groups()
    ours = gradient_of(model, rl.prepare(groups, wanted, [0]), wanted)
    model.network.zero_grad()
    kept = [rollout for group in groups[:2] for rollout in group]  # the third group has no signal
    total = sum(len(turn.completion) for rollout in kept for turn in rollout.turns)
    for group in groups[:2]:
        rewards = np.array([rollout.reward for rollout in group], np.float64)
        for rollout in group:
            assert rollout.reward is not None
            advantage = float((rollout.reward - rewards.mean()) / rewards.std())
            own = sum(len(turn.completion) for turn in rollout.turns)
            weight = 1 / total if normalization == "token" else 1 / (len(kept) * own)
            for turn in rollout.turns:
                logprobs = reference_logprobs(model, turn)
                w = torch.exp(logprobs.detach() - torch.from_numpy(turn.logprobs)).clamp(max=2.0)
                (-(weight * w * advantage) * torch.exp(logprobs - logprobs.detach())).sum().backward()
    assert_same({name: weight.grad for name, weight in model.trainable()}, ours)  # type: ignore[misc]


def reference_logprobs(model: Model, turn: Turn) -> torch.Tensor:
    tokens = torch.from_numpy(np.concatenate([turn.prompt, turn.completion]).astype(np.int64))
    logits = model.network(tokens[None]).logits[0, len(turn.prompt) - 1 : -1] / turn.temperature
    return torch.log_softmax(logits, -1).gather(1, tokens[len(turn.prompt) :, None])[:, 0]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("frozen", [False, True])
def test_a_shared_prefix_gives_the_same_logprobs_and_gradient(
    tmp_path: Path, tied: bool, frozen: bool
) -> None:
    from tests.tiny_model import build_tiny_model

    folder = build_tiny_model(tmp_path / "tiny", tied=tied)
    settings = {"freeze_embeddings": True, "freeze_layers": 1} if frozen else {}
    model = Model(ModelConfig.model_validate({"path": str(folder), "autocast": "none"} | settings))
    groups = make_groups(shared=40)
    # a rollout that ends inside the others' prefix: its targets lie in the part that is run once
    inside = groups[0][0].turns[0].prompt[:40]
    zeros = np.zeros(6, np.int32)
    short = Turn("short", inside[:30], inside[30:36], np.full(6, -6.0, np.float32), zeros, zeros, 1.0)
    groups[0][1] = replace(groups[0][1], turns=[short])
    wanted = stage()
    batch = rl.prepare(groups, wanted, [0])
    (shared,) = pack(batch.samples, max_rows=64, max_tokens=None, share=True)
    (plain,) = pack(batch.samples, max_rows=64, max_tokens=None, share=False)
    assert shared.shared == 35 and plain.shared == 0
    torch.testing.assert_close(model.logprobs(shared), model.logprobs(plain), atol=1e-5, rtol=1e-5)
    assert_same(gradient_of(model, batch, wanted, share=False), gradient_of(model, batch, wanted, share=True))


def test_sdpa_and_checkpointing_give_the_same_gradient(tiny_model: Path, model: Model) -> None:
    wanted = stage()
    batch = rl.prepare(make_groups(), wanted, [0])
    reference = gradient_of(model, batch, wanted)
    sdpa = Model(ModelConfig(path=str(tiny_model), autocast="none", attention="sdpa"))
    assert_same(reference, gradient_of(sdpa, batch, wanted))
    checkpointed = ModelConfig(
        path=str(tiny_model), autocast="none", gradient_checkpointing=True, share_prefix=False
    )
    assert_same(reference, gradient_of(Model(checkpointed), batch, wanted, share=False))


def test_a_second_update_clips_against_the_first_logprobs(tiny_model: Path) -> None:
    """With two updates pi_prox stays that of the start, so the second sees ratios other than one."""
    from trainer.config import OptimizerConfig
    from trainer.optimizer import Optimizer

    model = Model(ModelConfig(path=str(tiny_model), autocast="none"))
    wanted = stage(updates=2)
    batch = rl.prepare(make_groups(), wanted, [0])
    metrics = rl.update(
        model,
        Optimizer(model, OptimizerConfig()),
        batch,
        wanted,
        lr=1e-2,
        version=0,
        judge=lambda gaps, version: {},
    )
    assert metrics["ratio/max"] > 1.05


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
def test_sft_gradient_does_not_depend_on_micro_batches(model: Model, normalization: str) -> None:
    rollouts = [build_samples(0, rollout.turns)[0] for group in make_groups() for rollout in group]
    results = []
    for micro_batch in (1, 3, 64):
        settings = {
            "name": "s",
            "objective": "sft",
            "source_policy": "t",
            "rollouts": 9,
            "batch": 9,
            "steps": 1,
            "lr": 0.0,
        }
        wanted = sft.SftStage.model_validate(
            settings | {"micro_batch": micro_batch, "normalization": normalization}
        )
        keeper = GradientKeeper(model)
        sft.update(model, keeper, rollouts, wanted, lr=0.0)  # type: ignore[arg-type]
        results.append(keeper.kept)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


class GradientKeeper:
    """In an optimiser's place: keeps the gradient in place of using it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.kept: Gradient = {}

    def zero(self) -> None:
        self.model.network.zero_grad()

    def step(self, lr: float) -> dict[str, float]:
        self.kept = {
            name: weight.grad.clone() for name, weight in self.model.trainable() if weight.grad is not None
        }
        return {}
