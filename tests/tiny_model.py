"""A tiny random Qwen3 with a tokenizer trained on the spot: real enough for vLLM and transformers, small enough for tests.

Everything is a function of the arguments, so two calls give the same files. The template is ChatML with tools in the
hermes form (``<tool_call>{json}</tool_call>``, ``<tool_response>``), which vLLM's ``hermes`` parser reads.
"""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

END_OF_TURN = "<|im_end|>"
PAD = "<|endoftext|>"
SPECIAL_TOKENS = [PAD, "<|im_start|>", END_OF_TURN]
MARKUP_TOKENS = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"]
"""Single ids, as in Qwen, but not special: they stay in decoded text, where the tool parser looks for them."""

VOCABULARY = 1024
"""Upper bound; the corpus below may yield fewer merges, and the model takes what came out."""

CHAT_TEMPLATE = r"""
{%- macro system_turn(text) -%}
    {{- "<|im_start|>system\n" + text -}}
    {%- if tools -%}
        {{- "\n\nYou may call these functions. Their signatures, one JSON object a line:" -}}
        {%- for tool in tools -%}
            {{- "\n" + (tool | tojson) -}}
        {%- endfor -%}
        {{- "\nTo call one, answer with its name and arguments as JSON between tags:\n" -}}
        {{- '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>' -}}
    {%- endif -%}
    {{- "<|im_end|>\n" -}}
{%- endmacro -%}
{%- if messages and messages[0].role == "system" -%}
    {{- system_turn(messages[0].content) -}}
{%- elif tools -%}
    {{- system_turn("You are a helpful assistant.") -}}
{%- endif -%}
{%- for message in messages -%}
    {%- if message.role == "system" and loop.first -%}
    {%- elif message.role == "tool" -%}
        {%- if loop.first or loop.previtem.role != "tool" -%}
            {{- "<|im_start|>user" -}}
        {%- endif -%}
        {{- "\n<tool_response>\n" + message.content + "\n</tool_response>" -}}
        {%- if loop.last or loop.nextitem.role != "tool" -%}
            {{- "<|im_end|>\n" -}}
        {%- endif -%}
    {%- else -%}
        {{- "<|im_start|>" + message.role + "\n" + (message.content or "") -}}
        {%- for call in message.tool_calls or [] -%}
            {%- if message.content or not loop.first -%}
                {{- "\n" -}}
            {%- endif -%}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
            {{- (call.function.arguments | tojson) + "}\n</tool_call>" -}}
        {%- endfor -%}
        {{- "<|im_end|>\n" -}}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{- "<|im_start|>assistant\n" -}}
{%- endif -%}
"""
"""Every line break of the output is spelled out, so that no trim setting of a jinja environment matters."""


def build_tiny_model(
    folder: Path,
    *,
    seed: int = 0,
    tied: bool = False,
    dtype: torch.dtype = torch.float32,
    hidden: int = 64,
    layers: int = 2,
) -> Path:
    """Writes a random model and its tokenizer to ``folder`` in the Hugging Face layout and returns ``folder``.

    ``tied`` shares the embedding with the output head, as small Qwen models do. ``hidden`` is a multiple of 32.
    """
    tokenizer = train_tokenizer()
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        intermediate_size=hidden * 3,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        tie_word_embeddings=tied,
        initializer_range=0.15,  # logits with a spread of about one: other weights give clearly other logprobs
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id
    )
    folder.mkdir(parents=True, exist_ok=True)
    model.to(dtype).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def train_tokenizer() -> PreTrainedTokenizerFast:
    """A byte-level BPE over a fixed corpus: any text round-trips, digits stay single as in Qwen."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(MARKUP_TOKENS),
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_tokens([AddedToken(text, normalized=False, special=False) for text in MARKUP_TOKENS])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=END_OF_TURN,
        pad_token=PAD,
        additional_special_tokens=["<|im_start|>"],
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
        model_max_length=4096,
    )


def _corpus() -> list[str]:
    """Pairings of a few words, and invented words made of syllables: the same on each machine."""
    people = ["the user", "the assistant", "a system", "a farmer", "the teacher", "an engineer", "someone"]
    verbs = [
        "calls",
        "answers",
        "reads",
        "counts",
        "writes",
        "returns",
        "looks for",
        "adds",
        "compares",
        "explains",
    ]
    things = [
        "the weather",
        "a number",
        "two files",
        "the function",
        "an apple",
        "every word",
        "the question",
    ]
    endings = [
        "in the city.",
        "before noon.",
        "with arguments.",
        "and stops.",
        "for the first time?",
        "as JSON.",
    ]
    sentences = [
        f"{who} {verb} {what} {end}" for who in people for verb in verbs for what in things for end in endings
    ]
    heads, tails = (
        ["ba", "co", "di", "fu", "ga", "lo", "mi", "pre", "sta", "vor"],
        ["n", "rt", "sk", "ve", "ming", "l"],
    )
    invented = [f" {first}{middle}{last}" for first in heads for middle in heads for last in tails]
    markup = [
        '{"name": "add", "arguments": {"a": 1, "b": 2}}',
        '{"type": "function", "parameters": {"x": true}}',
    ]
    return sentences + invented + markup * 20
