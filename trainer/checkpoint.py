"""Checkpoints: everything that a run needs to go on as if it had never stopped [I6].

A folder holds the weights as they are trained, the optimiser's moments, the random state and where the recipe stands.
It is renamed into place before the step is committed, so a step that names a checkpoint has one. A folder that no
committed step names is what a crash left, and is ignored.

An SFT stage, which consumes nothing, also writes checkpoints between its commits: they carry the number of the last
committed step and count as long as no later step is committed.
"""

from __future__ import annotations

import json
import pickle
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from trainer.errors import CheckpointUnusable
from trainer.folders import remove_partial, whole_folder
from trainer.model import Model
from trainer.optimizer import Optimizer

FORMAT = 1
STATE, TENSORS = "state.json", "optimizer.pt"


@dataclass(frozen=True)
class Position:
    """Where a run stands."""

    number: int
    """Committed steps of the policy, over all stages; the checkpoint's own commit included."""
    weights_version: int | None
    """Policy version of these weights; None between two commits of an SFT stage, where they have none."""
    stage: int
    """Index of the stage in the recipe."""
    stage_name: str
    stage_step: int
    """Optimiser steps (RL: batches) of that stage that are done."""
    fence: int
    """Of the trainer that wrote it."""


def write_checkpoint(parent: Path, position: Position, model: Model, optimizer: Optimizer | None) -> Path:
    """Writes a checkpoint below ``parent`` and returns its folder. ``optimizer`` is None at a stage's end, where its
    moments are of no more use."""
    path = parent / _name(position)
    with whole_folder(path) as folder:
        model.write(folder)
        tensors: dict[str, Any] = {"torch_rng": torch.get_rng_state()}
        if optimizer is not None:
            tensors |= {"optimizer": optimizer.inner.state_dict(), "skipped": optimizer.skipped_in_a_row}
        torch.save(tensors, folder / TENSORS)
        (folder / STATE).write_text(json.dumps({"format": FORMAT, **asdict(position)}, indent=2))
    return path


def _name(position: Position) -> str:
    return f"step-{position.number:06d}-stage-{position.stage}-{position.stage_step:06d}-fence-{position.fence:06d}"


def read_position(folder: Path) -> Position:
    """What a checkpoint's folder says of itself. Raises ``CheckpointUnusable``."""
    try:
        state = json.loads((folder / STATE).read_text())
        if state.pop("format") != FORMAT:
            raise CheckpointUnusable(
                f"checkpoint {folder} is of another format; start again in another output folder"
            )
        return Position(**state)
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise CheckpointUnusable(
            f"checkpoint {folder} cannot be read ({type(error).__name__}); remove it"
        ) from None


def restore(folder: Path, optimizer: Optimizer | None) -> None:
    """Puts back the random state and, if given, the optimiser's. The weights are the model's own business."""
    try:
        tensors = torch.load(folder / TENSORS, weights_only=True)
        torch.set_rng_state(tensors["torch_rng"])
        if optimizer is not None:
            names = ("betas", "eps", "weight_decay")  # the recipe's, not those of the saved run
            recipe = [{name: group[name] for name in names} for group in optimizer.inner.param_groups]
            optimizer.inner.load_state_dict(tensors["optimizer"])
            for group, settings in zip(optimizer.inner.param_groups, recipe, strict=True):
                group |= settings
            optimizer.skipped_in_a_row = int(tensors["skipped"])
    except (OSError, EOFError, KeyError, ValueError, RuntimeError, pickle.UnpicklingError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise CheckpointUnusable(
            f"checkpoint {folder} does not fit this recipe ({reason}); "
            "resume with the settings it was made with, or start again in another output folder"
        ) from None


def find_checkpoint(parent: Path, number: int, committed: str | None, *, known: bool) -> Path | None:
    """The newest checkpoint of a run whose last committed step has ``number`` and the folder ``committed``.

    That is the step's own, or one that an SFT stage wrote after it. None if nothing was written, or only what a crash
    left before its commit. ``known``: the database has steps of the policy, though all may be void. Raises
    ``CheckpointUnusable`` if the committed one is gone or damaged, or if the folder belongs to another database.
    """
    found = list(_readable(parent))
    between = [(position, path) for position, path in found if position.weights_version is None]
    usable = [(position, path) for position, path in between if position.number == number]
    if committed is not None:
        path = Path(committed)
        if not path.is_dir():
            raise CheckpointUnusable(
                f"step {number} is committed with checkpoint {path}, which is gone; restore that folder"
            )
        usable.append((read_position(path), path))
    elif number == 0 and not known and any(position.number > 1 for position, _ in found):
        raise CheckpointUnusable(
            f"{parent} holds checkpoints of a run that this database does not know; use another output"
        )
    usable.sort(key=lambda item: (item[0].stage, item[0].stage_step, item[0].fence))
    return usable[-1][1] if usable else None


def _readable(parent: Path) -> Iterator[tuple[Position, Path]]:
    """Checkpoints that say what they are. One that does not is no committed one, which is read by name."""
    for path in sorted(parent.glob("step-*")):
        with suppress(CheckpointUnusable):
            yield read_position(path), path


def prune(parent: Path, keep: int, always: Collection[Path]) -> None:
    """Deletes all but the ``keep`` newest checkpoints and ``always``, and what a crash left unfinished."""
    paths = sorted(parent.glob("step-*"), key=lambda path: path.stat().st_mtime_ns)
    kept = {path.resolve() for path in always}
    for path in paths[:-keep]:
        if path.resolve() not in kept:
            path.rename(path.with_name(f".{path.name}.partial"))  # a kill in here leaves no half a checkpoint
    remove_partial(parent)
