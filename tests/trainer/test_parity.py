"""I11: the gate judges the right tokens by the right tolerance."""

from __future__ import annotations

import numpy as np
import pytest

from trainer.config import ParityConfig
from trainer.errors import ParityFailed
from trainer.parity import ParityGate


def test_float32_judges_the_largest_gap_at_once() -> None:
    gate = ParityGate(ParityConfig(), rounded=False)
    assert gate.judge(np.array([0.0, 9e-5]), 1)["parity/failed"] == 0.0
    with pytest.raises(ParityFailed, match=r"version 2.*0\.0002"):
        gate.judge(np.array([0.0, 2e-4]), 2)


def test_bfloat16_judges_the_mean_of_enough_tokens() -> None:
    gate = ParityGate(ParityConfig(), rounded=True)
    gate.judge(np.full(200, 0.05), 1)  # too few to tell
    with pytest.raises(ParityFailed, match="over 300 tokens"):
        gate.judge(np.full(100, 0.05), 1)
    gate = ParityGate(ParityConfig(), rounded=True)
    spikes = np.zeros(300)
    spikes[0] = 2.5
    assert gate.judge(spikes, 1)["parity/gap_max"] == 2.5


def test_a_gap_that_is_not_a_number_fails() -> None:
    with pytest.raises(ParityFailed, match="not finite"):
        ParityGate(ParityConfig(), rounded=True).judge(np.array([np.nan]), 1)


def test_modes_and_own_tolerances() -> None:
    assert ParityGate(ParityConfig(mode="warn"), rounded=False).judge(np.ones(2), 1)["parity/failed"] == 1.0
    assert "parity/failed" not in ParityGate(ParityConfig(mode="off"), rounded=False).judge(np.ones(2), 1)
    ParityGate(ParityConfig(max_gap=2.0), rounded=False).judge(np.ones(2), 1)
    assert ParityGate(ParityConfig(), rounded=False).judge(np.empty(0), 1)["parity/tokens"] == 0.0
