"""One version's weights on their way to engines, and what must be true of an engine before it is paused for them.

A load that fails poisons the engine, so what can be known before is asked before: whether the engine sees the folder
(it reads a secret there), and whether it runs the same model (config.json against the engine's own).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainer.publish.control import EngineControl
from trainer.publish.errors import WeightsInvalid
from trainer.publish.validate import read_headers, relative_change

SHAPING = (
    "model_type",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "tie_word_embeddings",
)
"""Keys of config.json that decide names and shapes of the tensors."""

VISIBLE_CHANGE = {"float64": 1e-5, "float32": 1e-5, "bfloat16": 5e-3, "float16": 1e-3}
"""Relative change of the weights from which on the probe must change: above what rounding in each dtype can hide."""


@dataclass
class Weights:
    """What is to be loaded, under which version."""

    policy_id: str
    version: int
    folder: Path | None
    """Null: the weights that an engine was started with."""
    former: Path | None = None
    """Folder of the weights that ready engines serve now; null: those that they were started with."""
    proof: str = ""
    """Name and text of a file in ``folder``, while ``proven`` lasts."""
    _changes: dict[Path, bool] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return f"{self.policy_id}:{self.version}"

    @contextmanager
    def proven(self) -> Iterator[Weights]:
        """Puts the proof file into the folder for the time of the block."""
        if self.folder is None:
            yield self
            return
        self.proof = f".proof-{secrets.token_hex(16)}"
        path = self.folder / self.proof
        path.write_text(self.proof)
        try:
            yield self
        finally:
            path.unlink(missing_ok=True)

    def find_obstacle(self, control: EngineControl) -> str | None:
        """Why the engine must not be given these weights, with the remedy, or null. Raises ``ControlFailed``."""
        if self.folder is None:
            return None
        if any(text != self.proof for text in control.read_proof(self.folder, self.proof)):
            return f"it does not see {self.folder}: mount that folder on the engine's machine under the same path"
        try:
            config = json.loads((self.folder / "config.json").read_text())
        except (OSError, ValueError) as error:
            return f"{self.folder} has no readable config.json ({error})"
        return find_difference(config, control.describe().get("config", {}))

    def must_change(self, control: EngineControl) -> bool:
        """Whether these weights are so far from the engine's that its probe cannot stay the same.

        False where the former weights are not to be seen: then nothing can be demanded. Raises ``ControlFailed``.
        """
        former = self.former or Path(str(control.describe().get("base")))
        if self.folder is None:
            return False
        if former not in self._changes:
            self._changes[former] = is_visible_change(former, self.folder)
        return self._changes[former]


def find_difference(weights: dict[str, Any], engine: dict[str, Any]) -> str | None:
    """How the model of the weights differs from the engine's, or null."""
    for key in SHAPING:
        if key in weights and key in engine and weights[key] != engine[key]:
            return (
                f"it serves another model: {key} is {engine[key]} there and {weights[key]} in the weights; start it with "
                "the model that is trained"
            )
    return None


def is_visible_change(former: Path, new: Path) -> bool:
    """Whether no rounding can hide that ``new`` was loaded in place of ``former``."""
    try:
        dtypes = {info.dtype for info in read_headers(new).values()} & VISIBLE_CHANGE.keys()
        return relative_change(former, new) >= max(VISIBLE_CHANGE[dtype] for dtype in dtypes)
    except (WeightsInvalid, OSError, ValueError):
        return False
