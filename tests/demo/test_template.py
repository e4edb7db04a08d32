"""The demo's chat template: a turn's prompt is extended, token for token, by the next turn's."""

from __future__ import annotations

from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from singletree.demo.model import template
from singletree.demo.tasks import SYSTEM, TOOLS

TOOL_SPECS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"What {name} finds",
            "parameters": {
                "type": "object",
                "properties": {"item": {"type": "string"}},
                "required": ["item"],
            },
        },
    }
    for name in TOOLS
]
QUESTION = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "How much is the lamp?"}]
SAMPLED = '<tool_call>{"name": "get_price", "arguments": {"item": "lamp"}}</tool_call>'


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE with ChatML's special tokens: small, but it merges across words as a real one does."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    specials = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([SYSTEM, SAMPLED, "user assistant system tool $17"] * 4, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|im_end|>", chat_template=template())


def render(
    tokenizer: PreTrainedTokenizerFast, messages: list[dict[str, Any]], tools: Any = TOOL_SPECS
) -> str:
    text = tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True, tokenize=False)
    assert isinstance(text, str)
    return text


def called(content: str | None, arguments: Any = None) -> dict[str, Any]:
    function = {"name": "get_price", "arguments": arguments or {"item": "lamp"}}
    return {
        "role": "assistant",
        "content": content,
        "tool_calls": [{"id": "c1", "type": "function", "function": function}],
    }


def ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer(text, add_special_tokens=False)["input_ids"]  # pyright: ignore[reportReturnType]


@pytest.mark.parametrize("content", [None, "", "Let me look. "])
def test_the_next_turn_extends_the_sampled_tokens(
    tokenizer: PreTrainedTokenizerFast, content: str | None
) -> None:
    first = ids(tokenizer, render(tokenizer, QUESTION))
    sampled = [*ids(tokenizer, (content or "") + SAMPLED), tokenizer.eos_token_id]
    result = {"role": "tool", "tool_call_id": "c1", "content": "$17"}
    second = ids(tokenizer, render(tokenizer, [*QUESTION, called(content), result]))
    assert second[: len(first) + len(sampled)] == first + sampled
    tail = tokenizer.decode(second[len(first) + len(sampled) :])
    assert tail == "\n<|im_start|>tool\n$17<|im_end|>\n<|im_start|>assistant\n"


def test_the_answer_extends_too(tokenizer: PreTrainedTokenizerFast) -> None:
    result = {"role": "tool", "tool_call_id": "c1", "content": "$17"}
    before = render(tokenizer, [*QUESTION, called(None), result])
    after = render(tokenizer, [*QUESTION, called(None), result, {"role": "assistant", "content": "$17"}])
    assert after.startswith(before + "$17<|im_end|>\n")


def test_system_prompt_and_tools_are_one_turn(tokenizer: PreTrainedTokenizerFast) -> None:
    text = render(tokenizer, QUESTION)
    assert text.startswith(f"<|im_start|>system\n{SYSTEM}\nTools:\nget_price(item): What get_price finds\n")
    assert text.count("<|im_start|>system") == 1
    assert text.endswith(
        "<|im_end|>\n<|im_start|>user\nHow much is the lamp?<|im_end|>\n<|im_start|>assistant\n"
    )


def test_without_tools_it_is_plain_chatml(tokenizer: PreTrainedTokenizerFast) -> None:
    assert render(tokenizer, [{"role": "user", "content": "Hi"}], None) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_each_result_is_a_turn_of_its_own(tokenizer: PreTrainedTokenizerFast) -> None:
    results = [{"role": "tool", "tool_call_id": f"c{n}", "content": str(n)} for n in range(2)]
    text = render(tokenizer, [*QUESTION, called(None), *results])
    assert "<|im_start|>tool\n0<|im_end|>\n<|im_start|>tool\n1<|im_end|>\n" in text


def test_arguments_given_as_text_are_not_quoted_again(tokenizer: PreTrainedTokenizerFast) -> None:
    assert SAMPLED in render(tokenizer, [*QUESTION, called(None, '{"item": "lamp"}')])
