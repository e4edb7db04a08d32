"""The parity gate [I11]: do the engine that sampled and the trainer compute the same probabilities?

It compares logged logprobs with the trainer's own at the step's start, which the step needs anyway, for tokens whose
version is exactly that of the trainer's weights. Wrong weights, temperature, template, masks or kernels all show here,
before the optimiser moves.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import structlog
from numpy.typing import NDArray

from trainer.config import ParityConfig
from trainer.errors import ParityFailed

log = structlog.get_logger("trainer")

MAX_GAP_FLOAT32 = 1e-4
"""Measured largest gap with a 135M model in float32; a tiny one stays below 2e-5."""
MEAN_GAP_BFLOAT16 = 0.03
"""Several times the measured mean (0.003 to 0.02); single tokens may be off by more than 2."""


@dataclass
class ParityGate:
    """Judges batch after batch; ``rounded`` says that engine or trainer computes in bfloat16."""

    config: ParityConfig
    rounded: bool
    _carried: list[NDArray[np.float64]] = field(default_factory=list)

    @property
    def max_gap(self) -> float | None:
        return self.config.max_gap or (None if self.rounded else MAX_GAP_FLOAT32)

    @property
    def mean_gap(self) -> float | None:
        return self.config.mean_gap or (MEAN_GAP_BFLOAT16 if self.rounded else None)

    def judge(self, gaps: NDArray[np.float64], version: int) -> dict[str, float]:
        """Takes |recomputed - logged| (n,) of tokens of ``version``; returns metrics.

        The largest gap is judged at once, the mean as soon as ``min_tokens`` are there. Raises ``ParityFailed``
        beyond tolerance if the mode is ``stop``.
        """
        metrics: dict[str, float] = {"parity/tokens": float(len(gaps))}
        if len(gaps):
            metrics |= {"parity/gap_mean": float(gaps.mean()), "parity/gap_max": float(gaps.max())}
        if self.config.mode == "off":
            return metrics
        verdict = self._verdict(gaps)
        metrics["parity/failed"] = float(verdict is not None)
        if verdict and self.config.mode == "warn":
            log.warning("engine and trainer disagree", version=version, gap=verdict)
        if verdict and self.config.mode == "stop":
            raise ParityFailed(
                f"engine and trainer disagree on version {version}: {verdict}. Check that the engine serves this "
                "model with --logprobs-mode processed_logprobs, and that temperature and dtype are the same; "
                "parity.mean_gap and parity.max_gap set the tolerance"
            )
        return metrics

    def _verdict(self, gaps: NDArray[np.float64]) -> str | None:
        if not np.isfinite(gaps).all():
            return "a recomputed logprob is not finite"
        if self.max_gap is not None and len(gaps) and gaps.max() > self.max_gap:
            return (
                f"largest logprob gap {gaps.max():.3g} over {len(gaps)} tokens, tolerance {self.max_gap:.3g}"
            )
        if self.mean_gap is None:
            return None
        self._carried.append(gaps)
        pooled = np.concatenate(self._carried)
        if len(pooled) < self.config.min_tokens:
            return None
        self._carried = []
        if pooled.mean() > self.mean_gap:
            return f"mean logprob gap {pooled.mean():.3g} over {len(pooled)} tokens, tolerance {self.mean_gap:.3g}"
        return None
