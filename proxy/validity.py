"""Which captured tokens may be trained on. Pure.

vLLM writes -9999 for masked and NaN logprobs, may send null for NaN, and engines have been seen to lose ids or to
send more logprobs than ids. A span that fails a check is kept whole, marked with the reason and counted; it is never
trimmed to fit, since a trimmed span looks valid and is not what was sampled.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LOWEST_LOGPROB = -9000.0
"""At or below: a sentinel of the engine's, not a probability."""
HIGHEST_LOGPROB = 1e-5
"""Float32 log-softmax of a certain token can round to just above 0; such values are kept as they came. Anything
higher is no logarithm of a probability."""


def check_tokens(
    *,
    prompt_ids: Sequence[int] | None,
    completion_ids: Sequence[int] | None,
    logprobs: Sequence[float | None],
    usage: dict[str, object] | None,
) -> str | None:
    """The reason why a reply is untrainable, or None.

    ``completion_ids`` and ``logprobs`` are those of the whole completion, end of turn included. Reasons:
    ``prompt_ids_missing``, ``token_ids_missing``, ``logprobs_count``, ``usage_missing``, ``usage_count``,
    ``logprob_not_finite``, ``logprob_positive``, ``logprob_sentinel``.
    """
    if not prompt_ids:
        return "prompt_ids_missing"
    if not completion_ids:
        return "token_ids_missing"
    if len(logprobs) != len(completion_ids):
        return "logprobs_count"
    if usage is None:
        return "usage_missing"
    if usage.get("completion_tokens") != len(completion_ids) or usage.get("prompt_tokens") != len(prompt_ids):
        return "usage_count"
    return check_logprobs(logprobs)


def check_logprobs(logprobs: Sequence[float | None]) -> str | None:
    """Checks the values alone; null counts as not finite."""
    try:
        values = np.asarray(logprobs, dtype=np.float64)
    except (TypeError, ValueError):
        return "logprob_not_finite"
    if not values.size or (values.max() <= HIGHEST_LOGPROB and values.min() > LOWEST_LOGPROB):
        return None  # NaN is neither
    if not np.isfinite(values).all():
        return "logprob_not_finite"
    if (values > HIGHEST_LOGPROB).any():
        return "logprob_positive"
    if (values <= LOWEST_LOGPROB).any():
        return "logprob_sentinel"
    return None
