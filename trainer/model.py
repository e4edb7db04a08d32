"""The model: load, token logprobs with gradient, save.

A micro-batch's common prefix is run once, with gradient, and its keys and values are expanded to the batch: on agent
traffic, where every row begins with the same system prompt and tools, that is most of the work. The logprobs and
gradients are those of the plain computation. Logits exist for a chunk of target positions at a time.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache, PreTrainedTokenizerBase
from transformers.utils import logging as transformers_logging

from trainer.algorithms.logprobs import token_logprobs
from trainer.config import ModelConfig
from trainer.data.packing import MicroBatch
from trainer.errors import ModelUnusable

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

UNSUPPORTED_SETTINGS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
"""Config entries with which logits are more than hidden times head; training would be silently wrong."""


class Model:
    """A causal language model being trained, and its tokenizer."""

    def __init__(self, config: ModelConfig, weights: Path | None = None) -> None:
        """Loads ``config.path``, or the weights of ``weights`` (a checkpoint's folder) in its place.

        Raises ``ModelUnusable`` if there is no such model, or if it is one whose logprobs this code would get wrong.
        """
        self.config = config
        if config.autocast == "bfloat16" and not config.multiplies_bfloat16:
            raise ModelUnusable(
                "this CPU has no bfloat16 units and emulates it 7 to 200 times slower than float32: set model.autocast: auto"
            )
        source: Any = str(weights or config.path)
        transformers_logging.disable_progress_bar()
        try:
            self.tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(source)
            self.network: Any = AutoModelForCausalLM.from_pretrained(
                source, dtype=DTYPES[config.dtype], attn_implementation=config.attention
            )
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
            raise ModelUnusable(
                f"cannot load the model {source}: {_first_line(error)}; model.path must be a folder with config.json, "
                "safetensors and a tokenizer"
            ) from None
        try:
            self.network.to(config.device)
        except (AssertionError, RuntimeError) as error:  # no such device, no driver, not enough memory
            raise ModelUnusable(
                f"model.device {config.device} cannot be used: {_first_line(error)}"
            ) from None
        self._check()
        self._freeze()
        self.network.eval()  # no dropout: the sampled policy had none
        if config.gradient_checkpointing:
            self.network.train()
            self.network.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})

    def _check(self) -> None:
        if not hasattr(self.network.base_model, "layers"):
            raise ModelUnusable(
                f"{type(self.network).__name__} is built otherwise than the trainer knows (no base_model.layers)"
            )
        text_config = self.network.config.get_text_config()
        for name in UNSUPPORTED_SETTINGS:
            if getattr(text_config, name, None) not in (None, 1.0):
                raise ModelUnusable(
                    f"the model scales its logits ({name}), which the trainer does not do yet"
                )
        if getattr(self.head, "bias", None) is not None:
            raise ModelUnusable("the model's output head has a bias, which the trainer does not do yet")
        if self.config.gradient_checkpointing and getattr(text_config, "attention_dropout", 0.0):
            raise ModelUnusable("the model has attention dropout; set it to 0 in its config.json")
        kinds = set(getattr(text_config, "layer_types", None) or ["full_attention"])
        if self.config.share_prefix and kinds != {"full_attention"}:
            raise ModelUnusable(f"the model has {sorted(kinds)} layers: set model.share_prefix: false")
        layers = len(self.layers)
        if self.config.freeze_layers > layers:
            raise ModelUnusable(
                f"model.freeze_layers is {self.config.freeze_layers}, but the model has {layers} layers"
            )

    def _freeze(self) -> None:
        """Tied or not, the head is frozen with the embedding: an untied copy of a tied model trains alike."""
        frozen: list[nn.Module] = []
        if self.config.freeze_embeddings:
            frozen += [self.network.get_input_embeddings(), self.head]
        frozen += list(self.layers[: self.config.freeze_layers])
        for module in frozen:
            module.requires_grad_(False)
        if not self.trainable():
            raise ModelUnusable("every weight is frozen: lower model.freeze_layers")

    @property
    def head(self) -> nn.Linear:
        return self.network.get_output_embeddings()

    @property
    def layers(self) -> nn.ModuleList:
        return self.network.base_model.layers

    @property
    def vocabulary(self) -> int:
        """Rows of the output head: ids at or above cannot be targets."""
        return self.head.weight.shape[0]

    @property
    def end_of_turn(self) -> list[int]:
        """Ids with which the model may end a turn, by its generation config."""
        ends = getattr(self.network.generation_config, "eos_token_id", None)
        return [ends] if isinstance(ends, int) else list(ends or [])

    def trainable(self) -> list[tuple[str, nn.Parameter]]:
        """The weights that the optimiser changes; tied ones once."""
        return [(name, weight) for name, weight in self.network.named_parameters() if weight.requires_grad]

    def _weights(self) -> dict[str, Tensor]:
        """Everything that is written: parameters and persistent buffers, a tied head left out."""
        shared = set(self.network._tied_weights_keys or {}) if self.is_tied else set()
        return {name: value for name, value in self.network.state_dict().items() if name not in shared}

    @property
    def is_tied(self) -> bool:
        return self.head.weight is self.network.get_input_embeddings().weight

    def logprobs(self, batch: MicroBatch) -> Tensor:
        """Logprob of each target token, of logits / temperature, with gradient: float32 (N,)."""
        device = torch.device(self.config.device)
        with torch.autocast(device.type, DTYPES["bfloat16"], enabled=self.config.rounds):
            tokens = torch.from_numpy(batch.tokens).to(device)
            lengths = torch.from_numpy(batch.lengths).to(device)
            rows = torch.from_numpy(batch.target_rows).to(device)
            columns = torch.from_numpy(batch.target_columns).to(device)
            hidden = self._hidden(tokens, lengths, batch.shared, rows, columns - 1)
            temperatures = torch.from_numpy(batch.temperatures).to(device)
            return token_logprobs(hidden, self.head.weight, tokens[rows, columns], temperatures)

    def _hidden(self, tokens: Tensor, lengths: Tensor, shared: int, rows: Tensor, columns: Tensor) -> Tensor:
        """Last hidden states (N, H) at (rows, columns) of ``tokens`` (B, L); the first ``shared`` columns run once."""
        size, width = tokens.shape
        mask = (torch.arange(width, device=tokens.device) < lengths[:, None]).long()
        if not shared:
            return self._run(tokens, mask, None)[rows, columns]
        cache = DynamicCache()
        prefix = self._run(tokens[:1, :shared], mask[:1, :shared], cache)
        layer: Any
        for layer in cache.layers:
            layer.keys = layer.keys.expand(size, -1, -1, -1)
            layer.values = layer.values.expand(size, -1, -1, -1)
        suffix = self._run(tokens[:, shared:], mask, cache)
        in_prefix = (columns < shared)[:, None]
        from_prefix = prefix[0, columns.clamp(max=shared - 1)]
        from_suffix = suffix[rows, (columns - shared).clamp(min=0)]
        return torch.where(in_prefix, from_prefix, from_suffix)

    def _run(self, tokens: Tensor, mask: Tensor, cache: DynamicCache | None) -> Tensor:
        """Hidden states (B, S, H) after the final norm. ``mask`` covers the cache and ``tokens``; padding is right."""
        past = mask.shape[1] - tokens.shape[1]
        positions = torch.arange(past, mask.shape[1], device=tokens.device)[None].expand(tokens.shape[0], -1)
        output = self.network.base_model(
            input_ids=tokens,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=cache is not None,
        )
        return output.last_hidden_state

    def write(self, folder: Path, dtype: str | None = None) -> None:
        """Writes weights, config and tokenizer into an existing ``folder`` in the Hugging Face layout.

        ``dtype`` (default: as held) is that of the floating-point weights. A tied head is left out, as engines expect.
        """
        wanted = DTYPES[dtype or self.config.dtype]
        weights = {
            name: (
                value.detach().to("cpu", wanted) if value.is_floating_point() else value.cpu()
            ).contiguous()
            for name, value in self._weights().items()
        }
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        settings = self.network.config.to_dict() | {"dtype": str(wanted).removeprefix("torch.")}
        settings["architectures"] = [type(self.network).__name__]
        (folder / "config.json").write_text(json.dumps(settings, indent=2, default=str))
        if self.network.generation_config is not None:
            self.network.generation_config.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
