"""Supervised fine-tuning: cross entropy on the tokens that an assistant said.

    loss = - sum over target tokens of  weight x logprob

Weights come from the whole optimiser step, as in RL [I10]. Logits are not divided by anything: what is learned is the
distribution at temperature 1.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from trainer.algorithms.normalize import NORMALIZATIONS
from trainer.config import SftStage
from trainer.data.packing import pack
from trainer.data.samples import Sample
from trainer.model import Model
from trainer.optimizer import Optimizer


def draw(rollouts: int, stage: SftStage, step: int, seed: Sequence[int]) -> list[int]:
    """Indices of the rollouts of step ``step`` (from 0): each permutation is used up before the next begins.

    A pure function of its arguments, so that a resumed stage draws what it would have drawn.
    """
    chosen: list[int] = []
    for place in range(step * stage.batch, (step + 1) * stage.batch):
        epoch, offset = divmod(place, rollouts)
        order = np.random.default_rng([*seed, epoch]).permutation(rollouts)
        chosen.append(int(order[offset]))
    return chosen


def update(
    model: Model,
    optimizer: Optimizer,
    rollouts: Sequence[Sequence[Sample]],
    stage: SftStage,
    *,
    lr: float,
    stop: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """One optimiser update on the samples of some rollouts; returns metrics. ``stop`` may raise to abandon it."""
    counts = [sum(sample.target_count for sample in samples) for samples in rollouts]
    weights = NORMALIZATIONS[stage.normalization](counts)
    flat = [(sample, weight) for samples, weight in zip(rollouts, weights, strict=True) for sample in samples]
    packed = pack(
        [sample for sample, _ in flat],
        max_rows=stage.micro_batch,
        max_tokens=stage.micro_batch_tokens,
        share=model.config.share_prefix,
    )
    optimizer.zero()
    loss_sum = logprob_sum = 0.0
    for micro_batch in packed:
        stop()
        logprobs = model.logprobs(micro_batch)
        repeats = [flat[index][0].target_count for index in micro_batch.samples]
        per_row = np.array([flat[index][1] for index in micro_batch.samples], np.float32)
        loss = -(torch.from_numpy(np.repeat(per_row, repeats)).to(logprobs.device) * logprobs).sum()
        loss.backward()
        loss_sum += float(loss.detach())
        logprob_sum += float(logprobs.detach().sum())
    total = sum(counts)
    return {
        "loss": loss_sum,
        "nll": -logprob_sum / total if total else 0.0,
        "tokens/targets": float(total),
        "samples": float(len(flat)),
    } | optimizer.step(lr)
