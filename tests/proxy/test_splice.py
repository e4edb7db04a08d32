"""I1, exact splice: over random conversations, re-serialised as harnesses do it, the spliced prompt is the one that a
direct computation gives; where it cannot be proved, the history forks.

The direct computation never renders a history: it puts the recorded tokens, the template's closing and the tokens of
the new messages' own rendering one after the other.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from proxy.splice import (
    MARKER,
    Fork,
    Recorded,
    Spliced,
    Unproved,
    common_prefix,
    common_suffix,
    find_closer,
    splice,
    splice_rewritten,
    with_marker,
    with_other_end,
)
from tests.tiny_model import CHAT_TEMPLATE, END_OF_TURN, train_tokenizer

DROPS_THINKING = CHAT_TEMPLATE.replace(
    '(message.content or "")',
    '((message.content or "") if loop.last or "</think>" not in (message.content or "")'
    ' else message.content.split("</think>")[-1])',
)
"""Rewrites a reply as soon as it is not the last message, as Qwen3's template does."""
assert DROPS_THINKING != CHAT_TEMPLATE


@cache
def tokenizer() -> PreTrainedTokenizerFast:
    return train_tokenizer()


@cache
def closer() -> int:
    return tokenizer().convert_tokens_to_ids(END_OF_TURN)  # type: ignore[return-value]


def render(messages: Sequence[dict[str, Any]], template: str, generate: bool) -> list[int]:
    parsed = [parse_arguments(message) for message in messages]
    text = tokenizer().apply_chat_template(
        parsed, chat_template=template, add_generation_prompt=generate, tokenize=False
    )
    return encode(str(text))


def parse_arguments(message: dict[str, Any]) -> dict[str, Any]:
    """vLLM hands arguments to templates as objects."""
    calls = [
        {**call, "function": {**call["function"], "arguments": json.loads(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "content": message.get("content") or "", **({"tool_calls": calls} if calls else {})}


def encode(text: str) -> list[int]:
    return tokenizer().encode(text, add_special_tokens=False)


words = st.text('ab <>{}"\n0é', max_size=12) | st.just("the user calls") | st.just(f"odd {END_OF_TURN} text")
arguments = st.dictionaries(st.sampled_from(["a", "b", "ç"]), st.integers(0, 9) | words, max_size=3)


@dataclass
class Turn:
    """What a model said, how it was sampled, and what came next."""

    text: str
    calls: list[dict[str, Any]]
    pieces: list[int]
    """Lengths in which the text was cut before each piece was tokenised: no canonical tokenisation."""
    ending: str
    """``closed``, ``length`` or ``stop``."""
    after: list[dict[str, Any]]


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    calls = draw(st.lists(arguments, max_size=2))
    results = [{"role": "tool", "content": draw(words), "tool_call_id": f"c{n}"} for n in range(len(calls))]
    user = [{"role": "user", "content": draw(words)}] if not calls or draw(st.booleans()) else []
    return Turn(
        text=draw(st.sampled_from(["", "<think>hm</think>", "<think>so</think>"])) + draw(words),
        calls=calls,
        pieces=draw(st.lists(st.integers(1, 5), max_size=8)),
        ending="closed" if calls else draw(st.sampled_from(["closed", "closed", "length", "stop"])),
        after=[*results, *user],
    )


def sample(turn: Turn) -> tuple[list[int], Recorded]:
    """Tokens that a model can have sampled for the turn: any spelling, no closer inside."""
    text = turn.text + "".join(
        '\n<tool_call>\n{"name": "f", "arguments": '
        + json.dumps(call, separators=(",", ":"))
        + "}\n</tool_call>"
        for call in turn.calls
    )
    ids, start = [], 0
    for length in [*turn.pieces, len(text)]:
        ids += [token for part in split_specials(text[start : start + length]) for token in part]
        start += length
    ids = [token for token in ids if token != closer()] or encode("x")
    if turn.ending == "closed":
        ids.append(closer())
    finish = {"closed": "stop", "length": "length", "stop": "stop"}[turn.ending]
    return ids, Recorded(ids, finish, "a" if turn.ending == "stop" else None)


def split_specials(text: str) -> list[list[int]]:
    """Special tokens spelt out: their text, when a model says it, is not the token."""
    return [encode(part) for part in text.replace(END_OF_TURN, "<|im_|end|>").split("|im_")]


def echoed(turn: Turn, spacing: tuple[str, str], ascii_only: bool) -> dict[str, Any]:
    """The reply as a harness sends it back."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.text}
    if turn.calls:
        message["tool_calls"] = [
            {
                "id": f"c{index}",
                "type": "function",
                "function": {
                    "name": "f",
                    "arguments": json.dumps(call, separators=spacing, ensure_ascii=ascii_only),
                },
            }
            for index, call in enumerate(turn.calls)
        ]
    return message


conversations = st.tuples(
    st.lists(turns(), min_size=1, max_size=4),
    st.sampled_from([(",", ":"), (", ", ": ")]),
    st.booleans(),
    st.sampled_from([CHAT_TEMPLATE, DROPS_THINKING]),
    words,
)


@settings(max_examples=200, deadline=None)
@given(conversations)
def test_a_spliced_prompt_is_the_direct_one(
    conversation: tuple[list[Turn], tuple[str, str], bool, str, str],
) -> None:
    said, spacing, ascii_only, template, question = conversation
    messages: list[dict[str, Any]] = [{"role": "user", "content": question}]
    prompt = render(messages, template, True)
    for turn in said:
        ids, recorded = sample(turn)
        recorded = Recorded(prompt + ids, recorded.finish_reason, recorded.stop_reason)
        messages.append(echoed(turn, spacing, ascii_only))
        upto = len(messages)
        messages += turn.after
        opening = render(turn.after, template, True)  # no system turn: the template adds none of its own
        closing = ([] if turn.ending == "closed" else [closer()]) + encode("\n")
        direct = recorded.tokens + closing + opening
        prompt = spliced(recorded, messages, upto, template)
        assert prompt == direct


def spliced(recorded: Recorded, messages: list[dict[str, Any]], upto: int, template: str) -> list[int]:
    history, whole = render(messages[:upto], template, False), render(messages, template, True)
    result = splice(recorded, history, whole, closer())
    if isinstance(result, Unproved):
        assert template == DROPS_THINKING
        changed = render(with_marker(messages, upto - 1), template, True)
        otherwise = render(with_other_end(messages, upto), template, True)
        result = splice_rewritten(recorded, history, whole, changed, otherwise, closer())
    assert isinstance(result, Spliced)
    assert result.prompt[: len(recorded.tokens)] == recorded.tokens
    return result.prompt


ONE = [
    {"role": "user", "content": "x"},
    {"role": "assistant", "content": "y"},
    {"role": "user", "content": "z"},
]


def parts(template: str = CHAT_TEMPLATE) -> tuple[list[int], list[int], list[int]]:
    prompt = render(ONE[:1], template, True)
    return prompt, render(ONE[:2], template, False), render(ONE, template, True)


def test_another_end_of_turn_than_the_templates_forks() -> None:
    prompt, history, whole = parts()
    other = tokenizer().convert_tokens_to_ids("<|endoftext|>")
    assert isinstance(other, int)
    result = splice(Recorded([*prompt, *encode("y"), other], "stop", str(other)), history, whole, closer())
    assert result == Fork("closer_differs", len(prompt) + 1)
    result = splice(Recorded([*prompt, *encode("y"), other], "stop", None), history, whole, closer())
    assert isinstance(result, Fork)


def test_a_template_without_a_closer_forks() -> None:
    prompt, history, whole = parts()
    history = [token for token in history if token != closer()]
    result = splice(Recorded([*prompt, closer()], "stop", None), history, whole, closer())
    assert isinstance(result, Fork) and result.cause == "no_closer"


def test_a_template_that_drops_turns_is_not_trusted() -> None:
    """It shows the last two messages only: counting and difference disagree."""
    short = CHAT_TEMPLATE.replace("for message in messages -", "for message in messages[-2:] -")
    assert short != CHAT_TEMPLATE
    messages = [*ONE, {"role": "assistant", "content": "w"}, {"role": "user", "content": "v"}]
    recorded = Recorded([*render(messages[:3], short, True), *encode("w"), closer()], "stop", None)
    history, whole = render(messages[:4], short, False), render(messages, short, True)
    assert isinstance(splice(recorded, history, whole, closer()), Unproved)
    changed = render(with_marker(messages, 3), short, True)
    otherwise = render(with_other_end(messages, 4), short, True)
    assert isinstance(splice_rewritten(recorded, history, whole, changed, otherwise, closer()), Fork)


def test_a_message_that_the_template_moves_to_the_front_is_not_lost() -> None:
    """vLLM gathers messages of the role developer in the first, where the template does not know the role."""
    reply = {"role": "assistant", "content": "y"}
    history = render([{"role": "system", "content": "a"}, *ONE[:1], reply], CHAT_TEMPLATE, False)
    gathered = [{"role": "system", "content": "a\nb"}, *ONE[:1], reply, ONE[2]]
    whole, changed = (
        render(gathered, CHAT_TEMPLATE, True),
        render(with_marker(gathered, 2), CHAT_TEMPLATE, True),
    )
    prompt = render(gathered[:2], CHAT_TEMPLATE, True)
    recorded = Recorded([*prompt, *encode("y"), closer()], "stop", None)
    otherwise = render([{"role": "system", "content": f"a\n{MARKER}"}, *gathered[1:]], CHAT_TEMPLATE, True)
    assert isinstance(splice_rewritten(recorded, history, whole, changed, whole, closer()), Spliced)
    assert isinstance(splice_rewritten(recorded, history, whole, changed, otherwise, closer()), Fork)


@pytest.mark.parametrize("ignored", ["content", "everything"])
def test_a_reply_that_the_template_does_not_show_forks(ignored: str) -> None:
    template = DROPS_THINKING.replace("message.content.split", '"" if true else message.content.split')
    messages: list[dict[str, Any]] = [ONE[0], {"role": "assistant", "content": "<think>a</think>b"}, ONE[2]]
    prompt = render(messages[:1], template, True)
    history, whole = render(messages[:2], template, False), render(messages, template, True)
    changed = whole if ignored == "everything" else render(with_marker(messages, 1), template, True)
    recorded = Recorded([*prompt, *encode("b"), closer()], "stop", None)
    otherwise = render(with_other_end(messages, 2), template, True)
    result = splice_rewritten(recorded, history, whole, changed, otherwise, closer())
    assert isinstance(result, Fork if ignored == "everything" else Spliced)


def test_a_reply_that_changes_nothing_proves_nothing() -> None:
    recorded = Recorded([5, 8, 9], "stop", None)
    assert isinstance(splice_rewritten(recorded, [5, 9], [5, 9, 6], [5, 9, 6], [5, 9, 6], 9), Fork)
    assert splice_rewritten(recorded, [5, 7, 9], [5, 7, 9, 6], [5, 4, 9, 6], [5, 7, 9, 1], 9) == Spliced(
        [5, 8, 9, 6]
    )


def test_the_closer_is_found_by_difference() -> None:
    one, other = (
        render(
            [{"role": "user", "content": "q"}, {"role": "assistant", "content": text}], CHAT_TEMPLATE, False
        )
        for text in ("one", "else")
    )
    assert find_closer(one, other) == [closer(), *encode("\n")]
    assert find_closer([1, 2], [1, 3]) == []


@given(st.lists(st.integers(0, 2)), st.lists(st.integers(0, 2)))
def test_common_ends(left: list[int], right: list[int]) -> None:
    prefix, suffix = common_prefix(left, right), common_suffix(left, right)
    assert left[:prefix] == right[:prefix] and left[len(left) - suffix :] == right[len(right) - suffix :]
    assert prefix == min(len(left), len(right)) or left[prefix] != right[prefix]
    assert suffix == min(len(left), len(right)) or left[-suffix - 1] != right[-suffix - 1]
