"""Splicing: the prompt of a turn is the recorded tokens of the turn before, and the template's tokens for what is new.

Keeps I1: nothing is spliced that was not proved. Text that a harness sends back need not tokenise as it was sampled,
and need not be the text that was sampled; so the recorded tokens stand for it, and only what follows the recorded turn
is taken from the template's rendering. Where the place at which it follows cannot be proved, the history forks, with
the cause. Pure: token lists in, token lists out.

Terms: for a history of messages whose last recorded reply is message k, ``history`` is the rendering of messages 0..k
without a generation prompt, ``whole`` that of all messages with it, under the same tools and template settings. The
*closer* is the token with which the template ends an assistant's turn, and which the model samples to end it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MARKER = "singletree marks this place 7391"
"""Text put in place of a reply to find out where its rendering ends; it must not end as any reply does."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """The turn that is extended."""

    tokens: list[int]
    """Prompt and completion, as they were sent and sampled."""
    finish_reason: str | None
    stop_reason: str | None
    """vLLM's: a stop string or a stop token's id as text; None where the model's own end of turn ended it."""


@dataclass(frozen=True, slots=True)
class Spliced:
    """A proved prompt; it begins with all of the recorded tokens."""

    prompt: list[int]


@dataclass(frozen=True, slots=True)
class Fork:
    """Why the recorded tokens could not be kept; the prompt is then ``whole``, as the template renders it."""

    cause: str
    token: int
    """Index of the first token in which ``whole`` differs from the recorded ones."""


@dataclass(frozen=True, slots=True)
class Unproved:
    """The template writes the history otherwise now than it did when the turn was recorded: where the turn ends in
    ``whole`` has to be found with one more rendering, see ``splice_rewritten``."""

    fork: Fork
    """What it is if it cannot be found, or must not be looked for."""


def splice(
    recorded: Recorded, history: Sequence[int], whole: Sequence[int], closer: int
) -> Spliced | Fork | Unproved:
    """The prompt, where the template only appends to the history. O(length)."""
    history, whole = list(history), list(whole)
    if end := _ending(recorded, closer):
        return Fork(end, common_prefix(recorded.tokens, whole))
    if closer not in history:
        return Fork("no_closer", common_prefix(recorded.tokens, whole))
    if whole[: len(history)] != history:
        return Unproved(Fork("template_rewrites_history", common_prefix(recorded.tokens, whole)))
    place = last_index(history, closer)
    return Spliced(_join(recorded, history[place:] + whole[len(history) :], closer))


def splice_rewritten(
    recorded: Recorded,
    history: Sequence[int],
    whole: Sequence[int],
    changed: Sequence[int],
    otherwise: Sequence[int],
    closer: int,
) -> Spliced | Fork:
    """The prompt, where the template rewrites what it rendered before (Qwen3 drops earlier thinking).

    ``changed`` is the rendering of all messages with the reply's text replaced (``with_marker``). Two proofs of where
    the reply ends must agree. By difference: what follows the reply is the same in ``whole`` and ``changed``, so the
    reply's closer is the first one in what they have in common at the end. By count: the reply's closer is as far down
    in ``whole`` as it is in ``history``, counted in closers. A closer inside a reply's text, or a template that drops
    turns, makes them disagree. And what comes before must not depend on what is new: where a new message is moved to the
    front (vLLM gathers system messages there for some templates), a splice would lose it. ``otherwise`` is the rendering
    of all messages with the new ones' text replaced (``with_other_end``); up to the closer it must agree with ``whole``.
    """
    history, whole, changed = list(history), list(whole), list(changed)
    fork = Fork("template_rewrites_history", common_prefix(recorded.tokens, whole))
    start = len(whole) - common_suffix(whole, changed)
    try:
        place = whole.index(closer, start)
    except ValueError:
        return fork
    if start == 0 or whole[: place + 1].count(closer) != history.count(closer):
        return fork
    if common_prefix(whole, otherwise) <= place:
        return fork
    return Spliced(_join(recorded, whole[place:], closer))


def with_marker(messages: Sequence[dict[str, Any]], index: int) -> list[dict[str, Any]]:
    """The messages with the last thing that the reply at ``index`` says replaced by ``MARKER``."""
    reply = dict(messages[index])
    if calls := reply.get("tool_calls"):
        function = {**(calls[-1].get("function") or {}), "arguments": json.dumps({"marker": MARKER})}
        reply["tool_calls"] = [*calls[:-1], {**calls[-1], "function": function}]
    else:
        reply["content"] = MARKER
    return [*messages[:index], reply, *messages[index + 1 :]]


def with_other_end(messages: Sequence[dict[str, Any]], upto: int) -> list[dict[str, Any]]:
    """The messages with the text of those from ``upto`` on replaced by ``MARKER``."""
    return [*messages[:upto], *({**message, "content": MARKER} for message in messages[upto:])]


def _ending(recorded: Recorded, closer: int) -> str | None:
    """Why the recorded turn cannot be closed as the template closes turns; None if it can."""
    if not recorded.tokens:
        return "no_tokens"
    last = recorded.tokens[-1]
    if last == closer or recorded.finish_reason == "length":
        return None
    cut_by_text = recorded.stop_reason is not None and recorded.stop_reason != str(last)
    return None if cut_by_text else "closer_differs"


def _join(recorded: Recorded, rest: list[int], closer: int) -> list[int]:
    """``rest`` begins with the closer, which is there already if the model sampled it."""
    return recorded.tokens + (rest[1:] if recorded.tokens[-1] == closer else rest)


def last_index(tokens: Sequence[int], token: int) -> int:
    """Raises ValueError if it is not there."""
    return len(tokens) - 1 - list(reversed(tokens)).index(token)


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many leading tokens agree."""
    length = min(len(left), len(right))
    for index in range(length):
        if left[index] != right[index]:
            return index
    return length


def common_suffix(left: Sequence[int], right: Sequence[int]) -> int:
    """How many tokens agree at the end."""
    length = min(len(left), len(right))
    for index in range(1, length + 1):
        if left[-index] != right[-index]:
            return index - 1
    return length


def find_closer(one: Sequence[int], other: Sequence[int]) -> list[int]:
    """What a template puts after an assistant's text, from two renderings that end in different texts: the closer
    first, as a rule a line break after it. Empty if it puts nothing."""
    length = common_suffix(one, other)
    return list(one[len(one) - length :]) if length else []
