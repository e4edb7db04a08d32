"""Tokens that must not be trained on are found, and never trimmed to fit."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.validity import check_logprobs, check_tokens

GOOD: dict[str, Any] = {
    "prompt_ids": [1, 2],
    "completion_ids": [3, 4, 5],
    "logprobs": [-0.5, 0.0, -8999.0],
    "usage": {"prompt_tokens": 2, "completion_tokens": 3},
}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({}, None),
        ({"logprobs": [-0.5, 1e-6, -1.0]}, None),
        ({"prompt_ids": None}, "prompt_ids_missing"),
        ({"completion_ids": None}, "token_ids_missing"),
        ({"completion_ids": []}, "token_ids_missing"),
        ({"logprobs": [-0.5, -0.5]}, "logprobs_count"),
        ({"logprobs": [-0.5] * 4}, "logprobs_count"),
        ({"usage": None}, "usage_missing"),
        ({"usage": {"prompt_tokens": 2, "completion_tokens": 4}}, "usage_count"),
        ({"usage": {"prompt_tokens": 3, "completion_tokens": 3}}, "usage_count"),
        ({"logprobs": [-0.5, math.nan, -1.0]}, "logprob_not_finite"),
        ({"logprobs": [-0.5, None, -1.0]}, "logprob_not_finite"),
        ({"logprobs": [-0.5, -math.inf, -1.0]}, "logprob_not_finite"),
        ({"logprobs": [-0.5, "x", -1.0]}, "logprob_not_finite"),
        ({"logprobs": [-0.5, 0.1, -1.0]}, "logprob_positive"),
        ({"logprobs": [-0.5, -9999.0, -1.0]}, "logprob_sentinel"),
    ],
)
def test_reasons(change: dict[str, Any], reason: str | None) -> None:
    assert check_tokens(**{**GOOD, **change}) == reason


@given(st.lists(st.floats(-8999, 0), min_size=1))
def test_logprobs_pass(values: list[float]) -> None:
    assert check_logprobs(values) is None


@given(
    st.lists(st.floats(-8999, 0)),
    st.sampled_from([math.nan, math.inf, -math.inf, None, -9999.0, 0.01]),
    st.data(),
)
def test_one_bad_logprob_anywhere_is_found(values: list[Any], bad: float | None, data: st.DataObject) -> None:
    values.insert(data.draw(st.integers(0, len(values))), bad)
    assert check_logprobs(values) is not None
