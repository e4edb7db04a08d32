"""What reaches the engine under a training policy, for any request."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.contract import (
    DEFAULT_SAMPLING,
    STRIPPED_FIELDS,
    apply_training,
    clamp_max_tokens,
    pass_through,
    untrainable_reason,
)

MESSAGES = [{"role": "user", "content": "hello"}]
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}

values = st.none() | st.booleans() | st.integers(-5, 5) | st.floats(allow_nan=False) | st.text(max_size=5)
unknown_names = st.text("abcdefgh_", min_size=1, max_size=12).filter(
    lambda name: name not in STRIPPED_FIELDS and name not in DEFAULT_SAMPLING
)
requests = st.fixed_dictionaries(
    {"messages": st.just(MESSAGES)},
    optional={
        **dict.fromkeys(sorted(STRIPPED_FIELDS), values),
        **{name: st.none() | st.floats(0, 2) | st.integers(0, 9) for name in DEFAULT_SAMPLING},
        "tools": st.lists(
            st.sampled_from([TOOL, {"type": "function", "function": {"name": "g"}}, 7]), max_size=3
        ),
        "tool_choice": st.sampled_from(
            ["auto", "none", "required", {"type": "function", "function": {"name": "f"}}]
        ),
        "parallel_tool_calls": st.sampled_from([True, False, 0, "false", None]),
        "n": st.integers(1, 3),
        "max_tokens": st.integers(1, 99),
        "stop": st.lists(st.text(max_size=3), max_size=2),
    },
)
policies = st.fixed_dictionaries(
    {}, optional={"temperature": st.floats(0.1, 2), "top_p": st.floats(0.1, 1), "top_k": st.integers(0, 50)}
)


@settings(max_examples=200, deadline=None)
@given(request=requests, extra=st.dictionaries(unknown_names, values, max_size=3), policy=policies)
def test_the_policy_alone_decides_how_tokens_are_drawn(
    request: dict[str, Any], extra: dict[str, Any], policy: dict[str, Any]
) -> None:
    request = {**extra, **request}
    before = copy.deepcopy(request)
    made = apply_training(request, policy)
    assert request == before, "the request is recorded as it came"
    assert (
        {name: made.body[name] for name in DEFAULT_SAMPLING}
        == {**DEFAULT_SAMPLING, **policy}
        == made.sampling
    )
    assert not STRIPPED_FIELDS & made.body.keys()
    assert made.body.get("parallel_tool_calls") in (None, True)
    assert "strict" not in str(made.body.get("tools"))
    for name in request.keys() & STRIPPED_FIELDS:
        assert name in made.stripped
    for name in extra.keys() | (request.keys() & {"messages", "n", "max_tokens", "stop", "tool_choice"}):
        assert made.body[name] == request[name], "what is not the contract's business goes through"
    if (request.get("n") or 1) > 1 or request.get("tool_choice") not in (None, "auto", "none"):
        assert made.untrainable


def test_replaced_values_are_recorded_and_equal_ones_are_not() -> None:
    request = {"messages": MESSAGES, "temperature": 0, "top_p": 1.0, "seed": 7, "tools": [TOOL]}
    assert apply_training(request, {}).stripped == ["seed", "temperature", "tools.strict"]


def test_min_p_is_never_the_policys() -> None:
    assert apply_training({"messages": MESSAGES}, {"min_p": 0.3}).body["min_p"] == 0.0


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({}, None),
        ({"tool_choice": "auto", "response_format": {"type": "text"}, "n": 1}, None),
        ({"tool_choice": "required"}, "forced_tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, "forced_tool_choice"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"structured_outputs": {"regex": "a*"}}, "structured_outputs"),
        ({"guided_json": {}}, "structured_outputs"),
        ({"n": 2}, "multiple_choices"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "media"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}]}, None),
    ],
)
def test_what_cannot_be_removed_is_marked(fields: dict[str, Any], reason: str | None) -> None:
    assert untrainable_reason({"messages": MESSAGES, **fields}) == reason


def test_a_frozen_policy_passes_requests_as_they_are() -> None:
    request = {
        "messages": MESSAGES,
        "seed": 1,
        "temperature": 0.2,
        "tools": [TOOL],
        "tool_choice": "required",
    }
    made = pass_through(request)
    assert made.body == request
    assert (made.stripped, made.untrainable, made.sampling) == ([], None, {"temperature": 0.2})


def test_more_tokens_than_the_window_are_lowered() -> None:
    body = {"max_tokens": 65536, "max_completion_tokens": 10}
    assert clamp_max_tokens(body, None) == []
    assert clamp_max_tokens(body, 4096) == ["max_tokens"]
    assert body == {"max_tokens": 4096, "max_completion_tokens": 10}
