"""Reinforcement learning on leased groups: advantages over rollouts, clipped ratio, correction, whole-step weights.

    loss = sum over target tokens of  weight x correction x policy_loss(ratio, advantage)

``advantage`` and ``weight`` belong to the token's rollout and are fixed before rows are packed, so that neither how a
rollout is split into rows [I9] nor how rows are batched [I10] changes the gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trainer.algorithms.advantage import ADVANTAGES, permute_rewards
from trainer.algorithms.correction import CORRECTIONS
from trainer.algorithms.normalize import NORMALIZATIONS
from trainer.algorithms.policy_loss import POLICY_LOSSES, PolicyLossInputs
from trainer.config import RlStage
from trainer.data.packing import MicroBatch, pack
from trainer.data.samples import RolloutData, Sample, build_samples
from trainer.model import Model
from trainer.optimizer import Optimizer


@dataclass(frozen=True)
class RlBatch:
    """What one optimiser step trains on. Lists indexed by rollout run over every rollout of every group."""

    samples: list[Sample]
    rollout_ids: list[str]
    advantages: list[float]
    """Per rollout; zero for those that have no sample here."""
    weights: list[float]
    """Per rollout: what one of its target tokens weighs."""
    metrics: dict[str, float]


def prepare(groups: Sequence[Sequence[RolloutData]], stage: RlStage, seed: Sequence[int]) -> RlBatch:
    """Builds the batch of one step. ``seed`` (non-negative integers) only matters under a control."""
    counts: Counter[str] = Counter()
    built: list[list[Sample]] = []
    for rollout in (rollout for group in groups for rollout in group):
        samples, spans = build_samples(len(built), rollout.turns)
        built.append(samples)
        counts += spans
    batch = assemble(groups, built, stage, seed)
    return replace(
        batch,
        metrics=batch.metrics | {f"spans/{reason}": float(count) for reason, count in sorted(counts.items())},
    )


def assemble(
    groups: Sequence[Sequence[RolloutData]],
    built: Sequence[list[Sample]],
    stage: RlStage,
    seed: Sequence[int],
) -> RlBatch:
    """Advantages and weights for rows that are built: ``built[i]`` are those of the i-th rollout over all groups.

    Both are rollouts' properties, so however many rows a rollout has, they come out the same [I9].
    """
    rewards: list[list[float | None]] = [[rollout.reward for rollout in group] for group in groups]
    metrics = _reward_metrics(rewards)
    if stage.control == "permute_rewards":
        rewards = permute_rewards(rewards, seed)
    samples: list[Sample] = []
    advantages: list[float] = []
    without_signal = 0
    for group_rewards in rewards:
        result = ADVANTAGES[stage.advantage](group_rewards)
        without_signal += not result.has_signal
        for advantage in result.values:
            if advantage is not None and (result.has_signal or stage.zero_variance == "keep"):
                samples += built[len(advantages)]
            advantages.append(advantage or 0.0)
    targets = [0] * len(built)
    for sample in samples:
        targets[sample.rollout] += sample.target_count
    metrics |= _sample_metrics(samples, sum(1 for count in targets if count))
    metrics["groups/zero_variance"] = without_signal / max(1, len(groups))
    rollout_ids = [rollout.id for group in groups for rollout in group]
    return RlBatch(samples, rollout_ids, advantages, NORMALIZATIONS[stage.normalization](targets), metrics)


def _reward_metrics(rewards: list[list[float | None]]) -> dict[str, float]:
    known = np.array([reward for group in rewards for reward in group if reward is not None], np.float64)
    total = sum(len(group) for group in rewards)
    metrics = {"reward/missing": float(total - len(known)), "rollouts": float(total)}
    if len(known):
        metrics |= {
            "reward/mean": float(known.mean()),
            "reward/std": float(known.std()),
            "reward/min": float(known.min()),
            "reward/max": float(known.max()),
        }
    return metrics


def _sample_metrics(samples: list[Sample], rollouts: int) -> dict[str, float]:
    return {
        "tokens/targets": float(sum(sample.target_count for sample in samples)),
        "tokens/rows": float(sum(len(sample.tokens) for sample in samples)),
        "samples": float(len(samples)),
        "samples/per_rollout": len(samples) / rollouts if rollouts else 0.0,
    }


def update(
    model: Model,
    optimizer: Optimizer,
    batch: RlBatch,
    stage: RlStage,
    *,
    lr: float,
    version: int,
    judge: Callable[[NDArray[np.float64], int], dict[str, float]],
    stop: Callable[[], None] = lambda: None,
) -> dict[str, float]:
    """``stage.updates`` optimiser updates over the batch; returns metrics, those of the loss from the last update.

    ``judge`` sees the parity gaps before the first update and may raise [I11]. ``stop`` is called between
    micro-batches and may raise to abandon the step: nothing has changed until the optimiser moves.
    """
    packed = pack(
        batch.samples,
        max_rows=stage.micro_batch,
        max_tokens=stage.micro_batch_tokens,
        share=model.config.share_prefix,
    )
    metrics = _staleness(batch.samples, version)
    prox: list[Tensor] | None = None
    for _ in range(stage.updates):
        optimizer.zero()
        seen = backward(model, packed, batch, stage, prox, stop)
        if prox is None:
            prox = [part.prox for part in seen]
            metrics |= judge(parity_gaps(packed, batch, prox, version), version)
        metrics |= _loss_metrics(seen) | optimizer.step(lr)
    return metrics


def backward(
    model: Model,
    packed: Sequence[MicroBatch],
    batch: RlBatch,
    stage: RlStage,
    prox: Sequence[Tensor] | None = None,
    stop: Callable[[], None] = lambda: None,
) -> list[Seen]:
    """Adds the whole batch's gradient to the model's weights. ``prox`` holds log pi_prox per micro-batch; None takes
    this pass's own logprobs, which is what they are before the first update."""
    seen = []
    for index, micro_batch in enumerate(packed):
        stop()
        seen.append(_accumulate(model, micro_batch, batch, stage, None if prox is None else prox[index]))
    return seen


@dataclass(frozen=True)
class Seen:
    """Detached per-token results of one micro-batch, for metrics; (N,) each, ``loss`` a sum."""

    prox: Tensor
    logprobs: Tensor
    correction: Tensor
    ratios: Tensor
    clipped: Tensor
    loss: float


def _accumulate(
    model: Model, micro_batch: MicroBatch, batch: RlBatch, stage: RlStage, prox: Tensor | None
) -> Seen:
    """Adds one micro-batch's gradient. ``prox`` is None in the first pass, whose own logprobs they are."""
    logprobs = model.logprobs(micro_batch)
    prox = logprobs.detach() if prox is None else prox
    logged, advantages, weights = (
        torch.from_numpy(array).to(logprobs.device) for array in per_token(micro_batch, batch)
    )
    correction = CORRECTIONS[stage.correction.kind](prox, logged, **_settings(stage.correction))
    inputs = PolicyLossInputs(logprobs, prox, advantages)
    outputs = POLICY_LOSSES[stage.loss.kind](inputs, **_settings(stage.loss))
    loss = (weights * correction * outputs.losses).sum()
    loss.backward()
    return Seen(prox, logprobs.detach(), correction, outputs.ratios, outputs.clipped, float(loss.detach()))


def _settings(config: Any) -> dict[str, Any]:
    return config.model_dump(exclude={"kind"})


def per_token(
    micro_batch: MicroBatch, batch: RlBatch
) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Logged logprob, advantage and weight of each target token, (N,) float32, in the micro-batch's order."""
    rows = [batch.samples[index] for index in micro_batch.samples]
    counts = [row.target_count for row in rows]
    logged = np.concatenate([row.logged[row.targets] for row in rows])
    advantages = np.repeat(np.array([batch.advantages[row.rollout] for row in rows], np.float32), counts)
    weights = np.repeat(np.array([batch.weights[row.rollout] for row in rows], np.float32), counts)
    return logged.astype(np.float32), advantages, weights


def parity_gaps(
    packed: Sequence[MicroBatch], batch: RlBatch, prox: Sequence[Tensor], version: int
) -> NDArray[np.float64]:
    """|recomputed - logged| of tokens that were certainly sampled from ``version``."""
    gaps: list[NDArray[np.float64]] = [np.empty(0)]
    for micro_batch, recomputed in zip(packed, prox, strict=True):
        rows = [batch.samples[index] for index in micro_batch.samples]
        logged = np.concatenate([row.logged[row.targets] for row in rows])
        low = np.concatenate([row.version_low[row.targets] for row in rows])
        high = np.concatenate([row.version_high[row.targets] for row in rows])
        ours = (low == version) & (high == version)
        gaps.append(np.abs(recomputed.cpu().numpy().astype(np.float64) - logged)[ours])
    return np.concatenate(gaps)


def _staleness(samples: Sequence[Sample], version: int) -> dict[str, float]:
    ages = np.concatenate(
        [np.zeros(0), *(version - sample.version_low[sample.targets] for sample in samples)]
    )
    if not len(ages):
        return {}
    return {"staleness/mean": float(ages.mean()), "staleness/max": float(ages.max())}


def _loss_metrics(seen: Sequence[Seen]) -> dict[str, float]:
    if not seen:
        return {"loss": 0.0}
    logprobs, correction, ratios, clipped = (
        torch.cat([getattr(part, name) for part in seen]).double()
        for name in ("logprobs", "correction", "ratios", "clipped")
    )
    return {
        "loss": sum(part.loss for part in seen),
        "policy/entropy": float(-logprobs.mean()),
        "ratio/mean": float(ratios.mean()),
        "ratio/max": float(ratios.max()),
        "ratio/clipped": float(clipped.mean()),
        "correction/mean": float(correction.mean()),
        "correction/min": float(correction.min()),
        "correction/max": float(correction.max()),
    }
