"""A teacher's words become the tokens that the policy's template gives them, and only the assistant's are targets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import singletree.demo
from tests.trainer.world import TOOLS
from trainer.data.retokenize import Retokenizer, Unrenderable, to_template

DEMO_TEMPLATE = Path(singletree.demo.__file__).parent / "chat_template.jinja"

CALL = {
    "id": "c1",
    "type": "function",
    "function": {"name": "get_price", "arguments": '{"item": "red tea", "n": 1}'},
}
MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "You are a clerk."},
    {
        "role": "user",
        "content": [{"type": "text", "text": "What does"}, {"type": "text", "text": "red tea cost?"}],
    },
]
ASKED = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "It costs 7."}
ANSWER = {"role": "assistant", "content": "Seven."}


@pytest.fixture(params=["tiny", "demo"])
def tokenizer(request: pytest.FixtureRequest, tiny_model: Path) -> PreTrainedTokenizerBase:
    loaded = AutoTokenizer.from_pretrained(tiny_model)
    if request.param == "demo":
        loaded.chat_template = DEMO_TEMPLATE.read_text()
    return loaded


def plain(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By hand: joined text, arguments as objects."""
    copy = json.loads(json.dumps(messages))
    for message in copy:
        if isinstance(message["content"], list):
            message["content"] = "\n".join(part["text"] for part in message["content"])
        message["content"] = message["content"] or ""
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.loads(call["function"]["arguments"])
    return copy


def apply(tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], generate: bool) -> list[int]:
    encoded = tokenizer.apply_chat_template(
        plain(messages), tools=TOOLS, add_generation_prompt=generate, return_dict=False
    )
    return [int(token) for token in encoded]


@pytest.mark.parametrize(
    ("history", "reply"), [(MESSAGES, ASKED), ([*MESSAGES, ASKED, RESULT], ANSWER)], ids=["call", "answer"]
)
def test_prompt_and_reply_are_those_of_the_template(
    tokenizer: PreTrainedTokenizerBase, history: list[dict[str, Any]], reply: dict[str, Any]
) -> None:
    prompt, completion = Retokenizer(tokenizer).encode_turn(
        {"messages": history, "tools": TOOLS}, reply, cut=False
    )
    assert prompt.tolist() == apply(tokenizer, history, True)
    whole = apply(tokenizer, [*history, reply], False)
    assert [*prompt.tolist(), *completion.tolist()] == whole[: len(prompt) + len(completion)]
    assert completion[-1] == tokenizer.eos_token_id
    rest = tokenizer.decode(whole[len(prompt) + len(completion) :])
    assert rest == "\n"  # what the template writes after the end of the turn is not a target
    said = tokenizer.decode(completion[:-1])
    assert said == "Seven." if reply is ANSWER else "get_price" in said and "red tea" in said


def test_the_next_prompt_extends_the_turn(tokenizer: PreTrainedTokenizerBase) -> None:
    retokenizer = Retokenizer(tokenizer)
    prompt, completion = retokenizer.encode_turn({"messages": MESSAGES, "tools": TOOLS}, ASKED, cut=False)
    after, _ = retokenizer.encode_turn(
        {"messages": [*MESSAGES, ASKED, RESULT], "tools": TOOLS}, ANSWER, cut=False
    )
    so_far = [*prompt.tolist(), *completion.tolist()]
    assert after[: len(so_far)].tolist() == so_far


def test_a_reply_that_was_cut_short_has_no_end(tokenizer: PreTrainedTokenizerBase) -> None:
    _, completion = Retokenizer(tokenizer).encode_turn({"messages": MESSAGES}, ANSWER, cut=True)
    assert tokenizer.decode(completion) == "Seven."


@pytest.mark.parametrize(
    ("messages", "reply", "reason"),
    [
        ([{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}], ANSWER, "media"),
        (MESSAGES, {"tool_calls": [{"function": {"name": "f", "arguments": "{"}}]}, "malformed_tool_call"),
        (MESSAGES, {"tool_calls": ["f"]}, "malformed_tool_call"),
    ],
)
def test_what_has_no_rendering_is_named(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], reply: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unrenderable) as caught:
        Retokenizer(tokenizer).encode_turn({"messages": messages}, reply, cut=False)
    assert caught.value.reason == reason


def test_templates_that_rewrite_or_fail_are_named(tiny_model: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    reasons = {
        "{{ messages | length }}{{ messages[-1].content }}": "template_rewrites_history",
        "{{ raise_exception('no') }}": "template_error",
        "{% for m in messages %}{{ m.content }}{% endfor %}": "no_end_of_turn",
    }
    for template, reason in reasons.items():
        tokenizer.chat_template = template
        with pytest.raises(Unrenderable) as caught:
            Retokenizer(tokenizer).encode_turn({"messages": MESSAGES}, ANSWER, cut=False)
        assert caught.value.reason == reason


def test_empty_tool_calls_are_dropped() -> None:
    assert to_template({"role": "assistant", "content": "a", "tool_calls": []}) == {
        "role": "assistant",
        "content": "a",
    }
