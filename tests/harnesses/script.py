"""What the model is to say, as a pure function of the request: so that a request sent twice is answered alike.

Requests are in hub terms (chat completions), whatever the harness speaks. A harness's side requests (titles, summaries,
sub-agents) are told from its main line by what is in them, and get texts of their own.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Line = Literal["main", "side"]
Body = Mapping[str, Any]
Script = Callable[[Body], tuple[Line, str]]
"""(request) -> which line of work it belongs to, and the text."""


NO_THOUGHT = "<think>\n\n</think>\n\n"
"""How Qwen3 begins when it has nothing to think about. Until ``</think>``, vLLM's parser takes text for thinking."""


def think(thought: str) -> str:
    return f"<think>\n{thought}\n</think>\n\n"


def call(tool: str, arguments: Mapping[str, Any] | str, *, text: str = "", before: str = NO_THOUGHT) -> str:
    """A tool call in the hermes form, as Qwen3's own template writes it; ``before`` and ``text`` come first.

    ``arguments`` given as text are used as they are: spaces and escapes that no serialiser would choose.
    """
    written = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    said = before + (f"{text}\n" if text else "")
    return f'{said}<tool_call>\n{{"name": "{tool}", "arguments": {written}}}\n</tool_call>'


def answer(text: str, *, before: str = NO_THOUGHT) -> str:
    """A last answer."""
    return before + text


def has_tools(body: Body) -> bool:
    return bool(body.get("tools"))


def replies(body: Body) -> int:
    """How many replies of the model are in the history."""
    return sum(message.get("role") == "assistant" for message in body["messages"])


def said_by_user(body: Body, text: str) -> bool:
    """Whether ``text`` is in a message of the user; in a tool call or a tool's result it does not count."""
    return any(
        text in str(message.get("content")) for message in body["messages"] if message["role"] == "user"
    )


@dataclass
class Turns:
    """A script of one main line: its n-th request, that is one with n replies in its history, gets the n-th text."""

    texts: Sequence[str]
    side: str = answer("A title")
    """What every request that is not of the main line gets."""
    is_main: Callable[[Body], bool] = field(default=has_tools)
    preset: int = 0
    """Replies that the harness itself puts into the history before the task."""

    def __call__(self, body: Body) -> tuple[Line, str]:
        if not self.is_main(body):
            return "side", self.side
        turn = replies(body) - self.preset
        if not 0 <= turn < len(self.texts):
            raise AssertionError(f"turn {turn + 1} of a line of {len(self.texts)}")
        return "main", self.texts[turn]
