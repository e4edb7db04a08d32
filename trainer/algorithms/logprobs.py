"""Log-probabilities of target tokens, without ever holding a vocabulary's worth of numbers for the whole batch.

The gradient of a token's logprob with respect to its hidden state is known in closed form, one vector per token:
(W[y] - sum_v p_v W[v]) / T. The forward pass works it out chunk by chunk while the logits are there, so the backward
pass through a frozen head costs nothing more; a head that trains has its logits recomputed.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

CHUNK = 1024
"""Positions at a time: 200 MB of float32 logits with a vocabulary of 50,000."""


def token_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, temperatures: Tensor) -> Tensor:
    """log softmax(hidden @ weight.T / T)[target], float32 (N,), differentiable in ``hidden`` and ``weight``.

    ``hidden`` (N, H), ``weight`` (V, H), ``targets`` (N,) int64, ``temperatures`` (N,) float32. The products run in
    the dtype that autocast or ``hidden`` gives; the softmax in float32.
    """
    if torch.is_autocast_enabled(hidden.device.type):
        dtype = torch.get_autocast_dtype(hidden.device.type)
        hidden, weight = hidden.to(dtype), weight.to(dtype)
    return _TokenLogprobs.apply(hidden, weight, targets, temperatures.float())  # pyright: ignore[reportReturnType]


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperatures: Tensor) -> Tensor:
        wants_hidden = hidden.requires_grad or ctx.needs_input_grad[0]
        logprobs = torch.empty(len(targets), dtype=torch.float32, device=hidden.device)
        jacobian = torch.empty_like(hidden) if wants_hidden else None
        for start in range(0, len(targets), CHUNK):
            part = slice(start, start + CHUNK)
            logprobs_all = _log_softmax(hidden[part], weight, temperatures[part])
            logprobs[part] = logprobs_all.gather(1, targets[part, None])[:, 0]
            if jacobian is not None:
                expected = logprobs_all.exp_().to(weight.dtype) @ weight
                jacobian[part] = (weight[targets[part]] - expected) / temperatures[part, None].to(
                    weight.dtype
                )
        ctx.save_for_backward(hidden, weight, targets, temperatures, jacobian)
        return logprobs

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *grad_outputs: Tensor
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        (grad,) = grad_outputs
        hidden, weight, targets, temperatures, jacobian = ctx.saved_tensors
        grad_hidden = (jacobian.float() * grad[:, None]).to(hidden.dtype) if jacobian is not None else None
        grad_weight = (
            _weight_gradient(hidden, weight, targets, temperatures, grad) if ctx.needs_input_grad[1] else None
        )
        return grad_hidden, grad_weight, None, None


def _log_softmax(hidden: Tensor, weight: Tensor, temperatures: Tensor) -> Tensor:
    logits = (hidden @ weight.T).float()
    return torch.log_softmax(logits.div_(temperatures[:, None]), dim=-1)


def _weight_gradient(
    hidden: Tensor, weight: Tensor, targets: Tensor, temperatures: Tensor, grad: Tensor
) -> Tensor:
    """sum_n grad_n / T_n (onehot(y_n) - p_n) h_n^T, (V, H)."""
    total = torch.zeros(weight.shape, dtype=torch.float32, device=weight.device)
    for start in range(0, len(targets), CHUNK):
        part = slice(start, start + CHUNK)
        slope = _log_softmax(hidden[part], weight, temperatures[part]).exp_().neg_()
        slope.scatter_add_(1, targets[part, None], torch.ones_like(slope[:, :1]))
        slope.mul_((grad[part] / temperatures[part])[:, None])
        total += (slope.to(weight.dtype).T @ hidden[part]).float()
    return total.to(weight.dtype)
