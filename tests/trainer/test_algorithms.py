"""Values worked out by hand."""

from __future__ import annotations

import math
from itertools import chain
from typing import Any

import pytest
import torch

from trainer.algorithms.advantage import grpo, permute_rewards
from trainer.algorithms.correction import CORRECTIONS, token_truncated
from trainer.algorithms.logprobs import CHUNK, token_logprobs
from trainer.algorithms.normalize import rollout, token
from trainer.algorithms.policy_loss import PolicyLossInputs, ppo_clip
from trainer.config import NoCorrectionConfig, TokenTruncatedConfig


def test_grpo_by_hand() -> None:
    assert grpo([1.0, 0.0, 0.0, 1.0]).values == [1.0, -1.0, -1.0, 1.0]
    values = grpo([1.0, 0.0, 0.0, 0.0]).values
    assert values == pytest.approx([math.sqrt(3), *[-1 / math.sqrt(3)] * 3])


def test_a_missing_reward_is_not_zero() -> None:
    result = grpo([1.0, None, 0.0])
    assert result.values == [1.0, None, -1.0]


@pytest.mark.parametrize("rewards", [[1.0], [0.5, 0.5, 0.5], [0.1 + 0.2, 0.3], [None, 1.0], [None], []])
def test_without_two_different_rewards_there_is_no_signal(rewards: list[float | None]) -> None:
    result = grpo(rewards)
    assert not result.has_signal
    assert all(value in (None, 0.0) for value in result.values)


def test_the_control_deals_out_the_same_rewards() -> None:
    groups: list[list[float | None]] = [[1.0, 0.0], [None, 3.0, 4.0]]
    dealt = permute_rewards(groups, [1, 2, 3])
    assert [len(group) for group in dealt] == [2, 3]
    assert sorted(map(str, chain(*dealt))) == sorted(map(str, chain(*groups)))
    assert dealt == permute_rewards(groups, [1, 2, 3])
    assert any(permute_rewards(groups, [seed]) != groups for seed in range(5))


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "slope"),
    [
        (1.0, 2.0, -2.0, -2.0),
        (1.5, 1.0, -1.28, 0.0),  # above 1 + clip_high with a good advantage: no further
        (1.5, -1.0, 1.5, 1.5),  # above with a bad one: come down
        (0.5, -1.0, 0.8, 0.0),  # below 1 - clip_low with a bad one: no further
        (0.5, 1.0, -0.5, -0.5),
        (1.2, 1.0, -1.2, -1.2),
    ],
)
def test_ppo_clip_by_hand(ratio: float, advantage: float, loss: float, slope: float) -> None:
    logprobs = torch.tensor([math.log(ratio) - 1.0], requires_grad=True)
    inputs = PolicyLossInputs(logprobs, torch.tensor([-1.0]), torch.tensor([advantage]))
    outputs = ppo_clip(inputs, clip_low=0.2, clip_high=0.28)
    outputs.losses.sum().backward()
    assert outputs.losses.item() == pytest.approx(loss, abs=1e-6)
    assert logprobs.grad is not None and logprobs.grad.item() == pytest.approx(slope, abs=1e-6)
    assert outputs.clipped.item() == (slope == 0.0)


def test_correction_is_capped_and_detached() -> None:
    prox = torch.tensor([-1.0, -1.0, -3.0], requires_grad=True)
    weights = token_truncated(prox, torch.tensor([-1.0, -3.0, -1.0]), cap=2.0)
    assert weights.tolist() == pytest.approx([1.0, 2.0, math.exp(-2.0)])
    assert not weights.requires_grad


@pytest.mark.parametrize("config", [NoCorrectionConfig(kind="none"), TokenTruncatedConfig()])
def test_each_correction_takes_the_settings_of_its_recipe(config: Any) -> None:
    weights = CORRECTIONS[config.kind](torch.zeros(3), torch.ones(3), **config.model_dump(exclude={"kind"}))
    assert weights.shape == (3,) and bool((weights > 0).all())


def test_normalisations_by_hand() -> None:
    assert token([2, 0, 6]) == [1 / 8, 0.0, 1 / 8]
    assert rollout([2, 0, 6]) == [1 / 4, 0.0, 1 / 12]
    assert token([]) == [] and rollout([0]) == [0.0]


@pytest.mark.parametrize("count", [3, CHUNK + 7])
def test_token_logprobs_and_both_gradients_are_those_of_log_softmax(count: int) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(count, 8, generator=generator, requires_grad=True)
    weight = torch.randn(50, 8, generator=generator, requires_grad=True)
    targets = torch.randint(0, 50, (count,), generator=generator)
    temperatures = torch.rand(count, generator=generator) + 0.5
    slope = torch.randn(count, generator=generator)

    plain = torch.log_softmax(hidden @ weight.T / temperatures[:, None], -1).gather(1, targets[:, None])[:, 0]
    (plain * slope).sum().backward()
    assert hidden.grad is not None and weight.grad is not None
    expected_hidden, expected_weight = hidden.grad.clone(), weight.grad.clone()
    hidden.grad = weight.grad = None
    ours = token_logprobs(hidden, weight, targets, temperatures)
    (ours * slope).sum().backward()
    torch.testing.assert_close(ours, plain, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(hidden.grad, expected_hidden, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(weight.grad, expected_weight, atol=1e-4, rtol=1e-4)


def test_a_frozen_head_gets_no_gradient() -> None:
    hidden = torch.randn(4, 8, requires_grad=True)
    weight = torch.randn(10, 8)
    token_logprobs(hidden, weight, torch.zeros(4, dtype=torch.int64), torch.ones(4)).sum().backward()
    assert hidden.grad is not None and weight.grad is None
