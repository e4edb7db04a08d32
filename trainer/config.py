"""The recipe: everything a training run is told, checked before anything is loaded.

Unknown keys are refused, and so is a setting that could have no effect: an option that is ignored without a word costs
somebody a week. ``load_recipe`` turns whatever is wrong into one line that names the key.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from trainer.errors import RecipeError


class Config(BaseModel):
    """Refuses unknown keys and cannot change once read."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class ModelConfig(Config):
    """What is trained, and how it is computed."""

    path: str
    """Folder of a Hugging Face causal language model with its tokenizer, or a hub id where a hub can be reached."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Of the weights that the optimiser changes. bfloat16 halves memory and loses small updates."""
    autocast: Literal["auto", "bfloat16", "none"] = "auto"
    """Of the matrix products. ``auto`` takes bfloat16 where the hardware multiplies it: on a CPU without such units it
    is emulated, 7 to 200 times slower than float32. ``none`` computes in ``dtype``, for exact parity too."""
    attention: Literal["eager", "sdpa", "flash_attention_2"] = "eager"
    """eager is the fastest on CPUs (SDPA's masked backward is not); sdpa or flash_attention_2 on GPUs."""
    device: str = "cpu"
    """torch's name for it, e.g. ``cuda``."""
    threads: PositiveInt | None = None
    """CPU threads of torch; all cores when left out. Two busy processes on the same cores slow each other 3 to 10 times."""
    freeze_embeddings: bool = False
    """Keep the input embedding and the output head as they are (one matrix in tied models)."""
    freeze_layers: int = Field(default=0, ge=0)
    """Keep this many of the lowest layers as they are. Below the lowest trained layer no gradient is computed."""
    gradient_checkpointing: bool = False
    """Recompute layers in the backward pass: less memory, a third more time."""
    share_prefix: bool = True
    """Run the prefix that all rows of a micro-batch have in common once, with gradient; exactly the same result."""

    @property
    def rounds(self) -> bool:
        """Whether the matrix products run in bfloat16 under autocast, with ``auto`` decided for this machine."""
        return self.dtype == "float32" and self.autocast != "none" and self.multiplies_bfloat16

    @property
    def multiplies_bfloat16(self) -> bool:
        """Whether the device multiplies bfloat16 in hardware."""
        return has_fast_bfloat16(self.device)

    @model_validator(mode="after")
    def _check(self) -> ModelConfig:
        if self.gradient_checkpointing and self.share_prefix:
            raise ValueError(
                "gradient_checkpointing needs share_prefix: false (recomputed layers keep no cache)"
            )
        if self.dtype == "bfloat16" and self.autocast == "bfloat16":
            raise ValueError("autocast: bfloat16 does nothing when dtype is bfloat16; set autocast: none")
        if self.freeze_layers and not self.freeze_embeddings:
            raise ValueError(
                "freeze_layers without freeze_embeddings: true saves no time; freeze the embeddings too"
            )
        return self


Decay = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Config):
    """AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101). Its state is zeroed between stages."""

    betas: tuple[Decay, Decay] = (0.9, 0.95)
    """Decay of the first and second moment."""
    eps: PositiveFloat = 1e-8
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.0, ge=0)
    """Decoupled; on matrices only."""
    clip_norm: PositiveFloat | None = 1.0
    """Bound of the whole gradient's norm; null for none."""


class CheckpointConfig(Config):
    """What a restart goes back to [I6]."""

    every_steps: int = Field(default=1, ge=0)
    """Steps between checkpoints; 0 for the ends of stages alone. A restart voids the steps since the last one, and
    their rollouts train again. A checkpoint holds weights and optimiser: 12 bytes a parameter, written and synced."""
    keep: PositiveInt = 2
    """How many stay on disk."""


class PublishConfig(Config):
    """How new weights reach the engines."""

    dtype: Literal["bfloat16", "float32"] | None = None
    """Of the files; should be the engines'. Left out: bfloat16 where autocast computes in it, else the model's dtype."""
    allow_no_engine: bool = False
    """Commit versions although the policy has no engine: training from a recorded log."""


class ParityConfig(Config):
    """The parity gate [I11]: logged logprobs against the trainer's own, for tokens of the current version."""

    mode: Literal["stop", "warn", "off"] = "stop"
    """What a gap beyond tolerance does."""
    max_gap: PositiveFloat | None = None
    """Largest |difference| of one token. Left out: 1e-4 in float32, no bound in bfloat16 (single tokens reach 2)."""
    mean_gap: PositiveFloat | None = None
    """Mean |difference|. Left out: 0.03 in bfloat16, no bound in float32."""
    min_tokens: PositiveInt = 256
    """How many tokens a mean is judged on; fewer are carried over to the next batch."""


class PpoClipConfig(Config):
    """PPO's clipped loss with two bounds."""

    kind: Literal["ppo_clip"] = "ppo_clip"
    """Name in ``trainer.algorithms.policy_loss.POLICY_LOSSES``."""
    clip_low: float = Field(default=0.2, gt=0, lt=1)
    """The ratio's lower bound is 1 - clip_low."""
    clip_high: PositiveFloat = 0.28
    """The ratio's upper bound is 1 + clip_high."""


class TokenTruncatedConfig(Config):
    """Truncated importance weights per token."""

    kind: Literal["token_truncated"] = "token_truncated"
    """Name in ``trainer.algorithms.correction.CORRECTIONS``."""
    cap: PositiveFloat = 2.0
    """Largest weight."""


class NoCorrectionConfig(Config):
    """No correction: weight one."""

    kind: Literal["none"]
    """Name in ``trainer.algorithms.correction.CORRECTIONS``."""


CorrectionConfig = Annotated[TokenTruncatedConfig | NoCorrectionConfig, Field(discriminator="kind")]


class StageBase(Config):
    """What every stage has."""

    name: str = Field(min_length=1)
    """Shown in logs and recorded with each step; unique in the recipe."""
    steps: PositiveInt
    """Optimiser steps (RL: batches) of the stage."""
    lr: float = Field(ge=0)
    """Peak learning rate. 0 is a control: the loop runs and nothing changes."""
    warmup_steps: int = Field(default=0, ge=0)
    """Step k (from 0) has lr x min(1, ((k + 1) / warmup_steps) ^ warmup_power)."""
    warmup_power: PositiveFloat = 1.0
    """1 is linear; 2 starts gently, which a zeroed Adam needs: its first step moves every weight by the full rate."""
    decay: Literal["none", "second_half"] = "none"
    """``second_half``: linear to zero over the second half of the stage's steps."""
    micro_batch: PositiveInt = 16
    """Rows computed at a time: speed and memory only, never the gradient [I10]."""
    micro_batch_tokens: PositiveInt | None = None
    """Tokens computed at a time, padding included; null for no bound."""

    def learning_rate(self, step: int) -> float:
        """Rate of step ``step`` (from 0) of the stage."""
        factor = 1.0
        if step < self.warmup_steps:
            factor = min(1.0, ((step + 1) / self.warmup_steps) ** self.warmup_power)
        if self.decay == "second_half":
            factor *= min(1.0, (self.steps - step) / (self.steps - self.steps // 2))
        return self.lr * factor


class SftStage(StageBase):
    """Supervised fine-tuning on recorded traffic: cross entropy on the tokens that the assistant said."""

    objective: Literal["sft"]
    """Makes this an SFT stage."""
    source_policy: str
    """Whose rollouts are learned from: a teacher's (rendered with this model's template) or the policy's own. They are
    read, not consumed."""
    rollouts: PositiveInt
    """How many to wait for; the oldest are taken."""
    batch: PositiveInt
    """Rollouts per optimiser step, drawn without replacement until all have been seen."""
    filter: Literal["rewarded", "all"] = "rewarded"
    """``rewarded`` takes rollouts with a reward above zero; ``all`` also those without."""
    normalization: Literal["token", "rollout"] = "token"
    """Name in ``trainer.algorithms.normalize.NORMALIZATIONS``."""
    publish: Literal["at_end"] = "at_end"
    """The engines get the weights once, when the stage is done."""

    @model_validator(mode="after")
    def _check(self) -> SftStage:
        if self.batch > self.rollouts:
            raise ValueError(f"batch ({self.batch}) is larger than rollouts ({self.rollouts})")
        return self


class RlStage(StageBase):
    """Reinforcement learning on the policy's own rollouts, each consumed exactly once."""

    objective: Literal["rl"]
    """Makes this an RL stage."""
    groups_per_step: PositiveInt
    """Groups that one step consumes; with the policy's group size this should be its ``rollouts_per_step``."""
    advantage: Literal["grpo"] = "grpo"
    """Name in ``trainer.algorithms.advantage.ADVANTAGES``."""
    loss: PpoClipConfig = PpoClipConfig()
    """Policy loss."""
    updates: PositiveInt = 1
    """Optimiser updates per batch, each over all of it. With one, the ratio is 1 and the clip has nothing to do."""
    correction: CorrectionConfig = TokenTruncatedConfig()
    """What lies between the engine that sampled and the trainer."""
    normalization: Literal["token", "rollout"] = "token"
    """Name in ``trainer.algorithms.normalize.NORMALIZATIONS``."""
    zero_variance: Literal["drop", "keep"] = "drop"
    """Groups whose rewards are all equal have no gradient. ``drop`` also keeps them out of the denominators."""
    control: Literal["none", "permute_rewards"] = "none"
    """``permute_rewards`` deals the batch's rewards out at random: a control that must not improve."""


Stage = Annotated[SftStage | RlStage, Field(discriminator="objective")]


class Recipe(Config):
    """A whole run."""

    policy: str
    """The policy that is trained, as registered with the proxy."""
    database: str = Field(
        default_factory=lambda: os.environ.get("SINGLETREE_DATABASE_URL", "sqlite:///singletree.db")
    )
    """URL of the span log that the proxy writes. Left out: the proxy's own variable, since a password has no place in
    a recipe."""
    output: Path
    """Folder for checkpoints and published weights; the engines must be able to read it."""
    seed: int = Field(default=0, ge=0)
    """Of the order of SFT batches and of the control's permutation."""
    model: ModelConfig
    """What is trained."""
    optimizer: OptimizerConfig = OptimizerConfig()
    """How."""
    checkpoint: CheckpointConfig = CheckpointConfig()
    """What a restart goes back to."""
    publish: PublishConfig = PublishConfig()
    """How weights reach the engines."""
    parity: ParityConfig = ParityConfig()
    """The check that engine and trainer compute the same."""
    poll_s: PositiveFloat = 0.2
    """Seconds between looks at the database while waiting for rollouts."""
    stages: list[Stage] = Field(min_length=1)
    """Run in order."""

    @model_validator(mode="after")
    def _check(self) -> Recipe:
        names = [stage.name for stage in self.stages]
        if len(set(names)) < len(names):
            raise ValueError("stages need different names")
        return self

    @property
    def publish_dtype(self) -> str:
        """Dtype of published files, worked out."""
        return self.publish.dtype or ("bfloat16" if self.model.rounds else self.model.dtype)

    @property
    def rounds(self) -> bool:
        """Whether engine or trainer computes in bfloat16: what the parity gate can expect."""
        return self.model.rounds or "bfloat16" in (self.model.dtype, self.publish_dtype)


def has_fast_bfloat16(device: str) -> bool:
    """Whether ``device`` multiplies bfloat16 in hardware."""
    import torch  # only here: checking a recipe should not cost a second

    return (
        not device.startswith("cpu")
        or torch.cpu._is_avx512_bf16_supported()
        or torch.cpu._is_amx_tile_supported()
    )


def load_recipe(path: Path) -> Recipe:
    """Reads and checks a YAML recipe. Raises ``RecipeError``, one line that names the key.

    Relative folders (``output``, ``model.path`` if it exists there) are taken from the working directory.
    """
    try:
        raw = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise RecipeError(f"no recipe at {path}; give the path of a YAML file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeError(f"cannot read the recipe {path}: {error}") from None
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(raw, dict):
        raise RecipeError(f"{path} must hold a mapping of settings, not {type(raw).__name__}")
    try:
        return Recipe.model_validate(raw)
    except ValidationError as error:
        raise RecipeError(f"{path}: {_one_line(error)}") from None


def _one_line(error: ValidationError) -> str:
    """The first problem, with the key's path, and how many more there are."""
    first, *others = error.errors(include_url=False)
    tags = {"sft", "rl", "token_truncated", "none"}  # pydantic puts a union's chosen member into the path
    key = ".".join(str(part) for part in first["loc"] if part not in tags) or "recipe"
    what = {"extra_forbidden": "unknown key", "missing": "is missing"}.get(
        first["type"], first["msg"].removeprefix("Value error, ")
    )
    more = f" (and {len(others)} more)" if others else ""
    return f"{key}: {what}{more}"
