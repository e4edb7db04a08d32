"""Corrections: importance weights for what lies between the engine that sampled and the trainer at the step's start.

w = pi_prox / mu, with mu the logged logprobs. It is a constant of the step: detached, and apart from the ratio that
the policy loss clips.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Correction = Callable[..., Tensor]


def token_truncated(prox_logprobs: Tensor, logged_logprobs: Tensor, *, cap: float) -> Tensor:
    """min(pi_prox / mu, cap) per token (N,), detached: truncated importance sampling (Espeholt et al. 2018,
    arXiv:1802.01561; for engine mismatch: Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training").
    """
    return torch.exp(prox_logprobs - logged_logprobs).clamp(max=cap).detach()


def none(prox_logprobs: Tensor, logged_logprobs: Tensor) -> Tensor:
    """Weight one everywhere (N,): trusts that the samples are the trainer's own."""
    return torch.ones_like(prox_logprobs)


CORRECTIONS: dict[str, Correction] = {"token_truncated": token_truncated, "none": none}
