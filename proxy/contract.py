"""The sampling contract: what reaches the engine under a training policy. Pure.

A trainer that recomputes logprobs assumes that every token was drawn from softmax(logits / temperature), with the
parameters that the policy states, and independently of other calls. So the proxy owns those parameters and sends every
one of them (an engine's generation_config fills the gaps otherwise), removes what biases or couples samples, and marks
what cannot be removed without breaking the caller. Fields that it does not know go through as they came.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DEFAULT_SAMPLING: dict[str, float | int] = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Plain sampling. ``policies.sampling`` may replace any of them but ``min_p``."""

STRIPPED_FIELDS = frozenset(
    {
        "seed",  # couples the rollouts of a group
        "logit_bias",
        "bad_words",
        "allowed_token_ids",
        "min_tokens",
        "ignore_eos",
        "thinking_token_budget",
        "thinking_budget",
        "best_of",
        "use_beam_search",
        "length_penalty",
        "watermarking",
        "repetition_detection",
        "logits_processors",
        "vllm_xargs",  # reaches custom logits processors
        "kv_transfer_params",  # would let a caller choose the prompt tokens
        "ec_transfer_params",
        "stream_interval",  # would hold tokens back past a weight swap [I2]
    }
)
"""Removed whatever their value; their names are recorded."""

_STRUCTURED_FIELDS = (
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
)
_TEXT_PARTS = frozenset({"text", "refusal", "input_text", "output_text", "thinking"})


@dataclass(frozen=True, slots=True)
class Contract:
    """What the contract made of a request."""

    body: dict[str, Any]
    """For the engine, without the capture fields and the model's name."""
    sampling: dict[str, Any]
    """The sampling parameters that ``body`` carries."""
    stripped: list[str]
    """Names of the fields removed, or replaced by another value; sorted."""
    untrainable: str | None
    """Why its tokens must not be trained on, if so."""


def apply_training(request: Mapping[str, Any], policy_sampling: Mapping[str, Any]) -> Contract:
    """The contract of a ``train`` policy. ``request`` is left as it is."""
    sampling = DEFAULT_SAMPLING | {
        name: policy_sampling[name] for name in DEFAULT_SAMPLING if name in policy_sampling
    }
    sampling["min_p"] = 0.0
    stripped = request.keys() & STRIPPED_FIELDS
    body = {name: value for name, value in request.items() if name not in stripped}
    stripped |= {name for name, value in sampling.items() if request.get(name) not in (None, value)}
    body |= sampling
    if body.get("parallel_tool_calls") not in (None, True):  # false, as vLLM reads it, makes it add a grammar
        del body["parallel_tool_calls"]
        stripped.add("parallel_tool_calls")
    if isinstance(tools := body.get("tools"), list) and any(map(_is_strict, tools)):
        body["tools"] = [
            _without_strict(tool) for tool in tools
        ]  # vLLM adds a grammar, even under tool_choice auto
        stripped.add("tools.strict")
    return Contract(body, sampling, sorted(stripped), untrainable_reason(request))


def clamp_max_tokens(body: dict[str, Any], window: int | None) -> list[str]:
    """Lowers what exceeds the engine's window (harnesses ask for 65536 tokens of a 32k model); vLLM itself lowers
    the rest to what the prompt leaves. Returns the names of the fields that it changed in ``body``."""
    clamped = []
    for name in ("max_tokens", "max_completion_tokens"):
        value = body.get(name)
        if window and isinstance(value, int) and value > window:
            body[name] = window
            clamped.append(name)
    return clamped


def pass_through(request: Mapping[str, Any]) -> Contract:
    """The contract of a ``frozen`` policy: nothing is changed."""
    sampling = {name: request[name] for name in DEFAULT_SAMPLING if name in request}
    return Contract(dict(request), sampling, [], None)


def untrainable_reason(request: Mapping[str, Any]) -> str | None:
    """``forced_tool_choice``, ``response_format``, ``structured_outputs``, ``multiple_choices``, ``media`` or None."""
    if request.get("tool_choice") not in (None, "auto", "none"):
        return "forced_tool_choice"
    response_format = request.get("response_format")
    if response_format is not None and response_format != {"type": "text"}:
        return "response_format"
    if any(request.get(name) is not None for name in _STRUCTURED_FIELDS):
        return "structured_outputs"
    if (request.get("n") or 1) != 1:
        return "multiple_choices"
    if has_media(request):
        return "media"  # the prompt ids hold placeholders: the trainer could not see what the model saw
    return None


def has_media(request: Mapping[str, Any]) -> bool:
    """Whether a message holds anything but text."""
    return any(_has_media(message) for message in request.get("messages") or ())


def _is_strict(tool: Any) -> bool:
    if not isinstance(tool, dict):
        return False
    function = tool.get("function")
    return "strict" in tool or (isinstance(function, dict) and "strict" in function)


def _without_strict(tool: Any) -> Any:
    if not isinstance(tool, dict):
        return tool
    tool = {name: value for name, value in tool.items() if name != "strict"}
    if isinstance(function := tool.get("function"), dict) and "strict" in function:
        tool["function"] = {name: value for name, value in function.items() if name != "strict"}
    return tool


def _has_media(message: Any) -> bool:
    content = message.get("content") if isinstance(message, dict) else None
    if not isinstance(content, list):
        return False
    return any(isinstance(part, dict) and not _is_text(part.get("type", "text")) for part in content)


def _is_text(kind: Any) -> bool:
    return isinstance(kind, str) and kind in _TEXT_PARTS
