"""Where the environments of harnesses live, and how one is made so that a half-made one is never used.

``stamp`` is written last and is the only judge of whether an environment is whole; ``building`` lets one process at a
time make it, so that test workers and runners that start together do not install over each other.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HOME_VARIABLE = "SINGLETREE_HARNESS_HOME"
STAMP = "singletree-harness.txt"
"""Written last, with what was installed."""


def harness_home() -> Path:
    """The folder of all environments: $SINGLETREE_HARNESS_HOME, else ``.cache/harnesses`` in the source checkout, else
    (installed as a package) the user's data folder."""
    if configured := os.environ.get(HOME_VARIABLE):
        return Path(configured).expanduser().absolute()
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".cache" / "harnesses"
    data = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    return data / "singletree" / "harnesses"


def is_whole(folder: Path, content: str) -> bool:
    """Whether ``folder`` holds an environment that was made to the end, of exactly ``content``."""
    try:
        return (folder / STAMP).read_text() == content
    except OSError:
        return False


@contextmanager
def building(folder: Path, content: str) -> Iterator[bool]:
    """Alone on the machine: yields True if ``folder`` has to be filled (it is then empty), False if it is whole.

    It is stamped with ``content`` when the body ends without an error.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if is_whole(folder, content):
            yield False
            return
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        yield True
        (folder / STAMP).write_text(content)
