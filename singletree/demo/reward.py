"""The demo's reward: 1 for the right answer by the right tool in one call, else 0. No shaping."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def grade(payload: Mapping[str, Any], calls: Sequence[str], text: str | None) -> float:
    """1.0 if the final ``text`` is exactly the fact that was asked for (spaces around it aside), and ``calls``, the
    names of the tools called, is the right tool once; else 0.0. A rollout without a final text scores 0.0: whatever
    the policy did is the policy's doing."""
    answered = text is not None and text.strip() == payload["answer"]
    return float(answered and list(calls) == [payload["tool"]])
