"""What transformers says that a model's logprobs are: the oracle for everything that an engine reports or a log holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel

TOLERANCE = 2e-5
"""Float32, tiny model, temperatures 0.7 to 1 (measured: 3e-6 to 1.2e-5)."""


@lru_cache(maxsize=8)
def load_reference(folder: Path) -> PreTrainedModel:
    """The model in float32 with plain attention."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    return model.eval()


@torch.inference_mode()
def reference_logprobs(
    folder: Path, prompt: Sequence[int], completion: Sequence[int], temperature: float = 1.0
) -> NDArray[np.float32]:
    """Logprob of each token of ``completion`` after ``prompt``, of logits divided by ``temperature``; float32 [n]."""
    tokens = torch.tensor([[*prompt, *completion]])
    logits = load_reference(folder)(tokens).logits[0, len(prompt) - 1 : -1].float() / temperature
    chosen = torch.log_softmax(logits, dim=-1).gather(1, torch.tensor(completion)[:, None])
    return chosen[:, 0].numpy()


def largest_gap(
    folder: Path,
    prompt: Sequence[int],
    completion: Sequence[int],
    logprobs: Sequence[float] | NDArray[np.float32],
    temperature: float = 1.0,
) -> float:
    """Largest absolute difference between ``logprobs`` and the reference's."""
    expected = reference_logprobs(folder, prompt, completion, temperature)
    return float(np.abs(expected - np.asarray(logprobs, np.float32)).max())
