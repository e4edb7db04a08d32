"""Tokens for spans that have none: a teacher's words, rendered as this policy would have said them.

The prompt is the template's rendering of the conversation with the generation prompt; the reply is what the rendering
grows by when the reply is added. So the template itself says where the assistant's turn begins and ends, and no
template is parsed here. Both are encoded apart, as they would have come about: the prompt first, then sampled tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from trainer.data.tree import Tokens


class Unrenderable(Exception):
    """This span has no faithful rendering; ``reason`` is the word it is counted under."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Retokenizer:
    """Renders with one tokenizer's chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_of_turn: Sequence[int] = ()) -> None:
        """``end_of_turn`` are ids beside the tokenizer's own end token with which a turn may end."""
        self._tokenizer = tokenizer
        self._ends = {int(token) for token in [*end_of_turn, tokenizer.eos_token_id] if token is not None}

    def encode_turn(
        self, request: dict[str, Any], reply: dict[str, Any], *, cut: bool
    ) -> tuple[Tokens, Tokens]:
        """Prompt (P,) and completion (C,) int32 of one call.

        ``request`` is a chat completion's (the hub's) request, ``reply`` the assistant message. The end-of-turn token is the
        completion's last, and a target, unless the reply was ``cut`` short by a length limit. What the template writes
        after it (often a newline) was never sampled and is left out. Raises ``Unrenderable``.
        """
        messages = [to_template(message) for message in request.get("messages") or []]
        before = self._render(messages, request, True)
        after = self._render([*messages, to_template(reply | {"role": "assistant"})], request, False)
        if not after.startswith(before):
            raise Unrenderable("template_rewrites_history")
        completion = self._encode(after[len(before) :])
        last = max((index for index, token in enumerate(completion) if token in self._ends), default=None)
        if last is None:
            raise Unrenderable("no_end_of_turn")
        completion = completion[: last if cut else last + 1]
        return np.array(self._encode(before), np.int32), np.array(completion, np.int32)

    def _render(self, messages: list[dict[str, Any]], request: dict[str, Any], generate: bool) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                messages,
                tools=request.get("tools") or None,
                add_generation_prompt=generate,
                tokenize=False,
                **(request.get("chat_template_kwargs") or {}),
            )
        except (TemplateError, TypeError, KeyError, ValueError):
            raise Unrenderable("template_error") from None
        return str(text)

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False)


def to_template(message: dict[str, Any]) -> dict[str, Any]:
    """A chat-completions message as templates expect it, and as vLLM hands it to them.

    Text parts are joined by newlines, missing content becomes empty, tool-call arguments become objects.
    """
    content = message.get("content")
    if isinstance(content, list):
        if any(not isinstance(part, dict) or part.get("type") not in ("text", "refusal") for part in content):
            raise Unrenderable("media")
        content = "\n".join(part.get("text") or part.get("refusal") or "" for part in content)
    converted = {key: value for key, value in message.items() if value is not None} | {
        "content": content or ""
    }
    calls = converted.pop("tool_calls", None)
    if calls:
        converted["tool_calls"] = [_with_parsed_arguments(call) for call in calls]
    return converted


def _with_parsed_arguments(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise Unrenderable("malformed_tool_call")
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments)
        except json.JSONDecodeError:
            raise Unrenderable("malformed_tool_call") from None
    return call | {"function": function | {"arguments": arguments}}
