"""AdamW, and the rule that no step is taken on a gradient that is not finite."""

from __future__ import annotations

import math
import time

import torch

from trainer.config import OptimizerConfig
from trainer.errors import TrainingDiverged
from trainer.model import Model

PATIENCE = 3
"""Updates in a row with a non-finite gradient before the run stops."""


class Optimizer:
    """One stage's optimiser: a new stage starts from zeroed moments."""

    def __init__(self, model: Model, config: OptimizerConfig) -> None:
        named = model.trainable()
        self.config = config
        self.weights = [weight for _, weight in named]
        self.inner = torch.optim.AdamW(
            [
                {
                    "params": [weight for weight in self.weights if weight.ndim >= 2],
                    "weight_decay": config.weight_decay,
                },
                {"params": [weight for weight in self.weights if weight.ndim < 2], "weight_decay": 0.0},
            ],
            lr=0.0,
            betas=config.betas,
            eps=config.eps,
            fused=True,
        )
        self.skipped_in_a_row = 0
        self.seconds = 0.0
        """Time spent in ``step`` so far."""

    def zero(self) -> None:
        """Drops the gradients."""
        self.inner.zero_grad(set_to_none=True)

    def step(self, lr: float) -> dict[str, float]:
        """Clips and applies the accumulated gradient; returns metrics. Raises ``TrainingDiverged``."""
        begin = time.monotonic()
        gradients = [weight.grad for weight in self.weights if weight.grad is not None]
        norm = float(torch.nn.utils.get_total_norm(gradients)) if gradients else 0.0
        metrics = {"optimizer/grad_norm": norm, "optimizer/lr": lr, "optimizer/skipped": 0.0}
        if not math.isfinite(norm):
            self.zero()
            self.skipped_in_a_row += 1
            if self.skipped_in_a_row >= PATIENCE:
                raise TrainingDiverged(
                    f"the gradient was not finite {PATIENCE} times in a row; lower the learning rate, or set "
                    "model.autocast: none to see whether it is rounding"
                )
            return metrics | {"optimizer/grad_norm": -1.0, "optimizer/skipped": 1.0}
        self.skipped_in_a_row = 0
        if self.config.clip_norm is not None:
            torch.nn.utils.clip_grads_with_norm_(self.weights, self.config.clip_norm, torch.tensor(norm))
        for group in self.inner.param_groups:
            group["lr"] = lr
        if gradients:
            self.inner.step()
        self.zero()
        self.seconds += time.monotonic() - begin
        return metrics
