"""Folders that appear whole or not at all, and stay after a power cut."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.errors import OutputUnwritable


def check_output(output: Path) -> None:
    """Raises ``OutputUnwritable`` unless a run's folder can be made and written: the first checkpoint is too late."""
    try:
        output.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=output):
            pass
    except OSError as error:
        raise OutputUnwritable(
            f"cannot write to {output} ({error.strerror}); choose another output"
        ) from None


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """A scratch folder beside ``path`` that is synced and renamed to it at the end; gone if the block raises.

    An older folder of that name is replaced.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}.partial")
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    try:
        yield scratch
        sync(scratch)
        shutil.rmtree(path, ignore_errors=True)
        scratch.rename(path)
        sync(path.parent, files=False)
    except BaseException:
        shutil.rmtree(scratch, ignore_errors=True)
        raise


def sync(folder: Path, *, files: bool = True) -> None:
    """Forces a folder's entries, and its files, to disk."""
    for path in [*(sorted(folder.iterdir()) if files else []), folder]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def remove_partial(parent: Path) -> None:
    """Deletes what a crash left of unfinished folders. Call it while no other trainer writes there."""
    for path in parent.glob(".*.partial"):
        shutil.rmtree(path, ignore_errors=True)
