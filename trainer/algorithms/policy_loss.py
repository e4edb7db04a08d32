"""Policy losses: from logprobs and advantages to a loss per token.

The ratio is pi_theta / pi_prox, with pi_prox the trainer's own logprobs at the step's start. What separates pi_prox
from the engine that sampled (staleness, other kernels) is the business of ``correction``, as in decoupled PPO
(Hilton et al. 2021, arXiv:2110.00641).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PolicyLossInputs:
    """Flat over the target tokens of some rows; all float32, (N,)."""

    logprobs: Tensor
    """log pi_theta, with gradient."""
    prox_logprobs: Tensor
    """log pi_prox, without."""
    advantages: Tensor
    """Each token's rollout's advantage."""


@dataclass(frozen=True)
class PolicyLossOutputs:
    """Per token, (N,)."""

    losses: Tensor
    """To be minimised, with gradient; neither weighted nor reduced."""
    ratios: Tensor
    """pi_theta / pi_prox, detached."""
    clipped: Tensor
    """True where the clip took the token's gradient away."""


PolicyLoss = Callable[..., PolicyLossOutputs]


def ppo_clip(inputs: PolicyLossInputs, *, clip_low: float, clip_high: float) -> PolicyLossOutputs:
    """-min(ratio A, clip(ratio, 1 - clip_low, 1 + clip_high) A): PPO (Schulman et al. 2017, arXiv:1707.06347,
    equation 7) with two bounds (DAPO, Yu et al. 2025, arXiv:2503.14476, section 3.1).

    With one update per batch the ratio is 1 and the gradient is A times that of the logprob.
    """
    ratios = torch.exp(inputs.logprobs - inputs.prox_logprobs)
    plain = ratios * inputs.advantages
    bounded = torch.clamp(ratios, 1.0 - clip_low, 1.0 + clip_high) * inputs.advantages
    return PolicyLossOutputs(-torch.minimum(plain, bounded), ratios.detach(), (bounded < plain).detach())


POLICY_LOSSES: dict[str, PolicyLoss] = {"ppo_clip": ppo_clip}
