"""Environments of harnesses that come from PyPI.

Each is a virtual environment of the Python that the harness needs, filled from a lock in ``locks/``: the harness and
everything that it needs, each pinned. A release of a client library changes what is on the wire as much as one of the
harness does; and pip takes up to half an hour to find versions that fit each other, but a minute to install them.
A lock is made anew with ``uv pip compile --no-annotate --no-header --python-version 3.12 FILE``.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness_adapters.environments.home import building, harness_home, is_whole
from harness_adapters.errors import HarnessMissing

INSTALL_TIMEOUT_S = 1800.0
LOCKS = Path(__file__).with_name("locks")
"""``NAME.txt``: one ``package==version`` a line."""


@dataclass(frozen=True)
class PythonEnvironment:
    """One harness from PyPI with what it needs, in a folder of its own."""

    name: str
    """The harness, as configurations call it."""
    version: str
    """The harness's own, which its lock pins."""
    python: str = "3.11"
    """Version of the interpreter, ``major.minor``."""

    @property
    def folder(self) -> Path:
        return harness_home() / f"{self.name}-{self.version}"

    @property
    def lock(self) -> Path:
        return LOCKS / f"{self.name}.txt"

    @property
    def _content(self) -> str:
        return f"python{self.python}\n{self.lock.read_text()}"

    @property
    def interpreter(self) -> Path:
        return self.folder / "bin" / "python"

    def program(self, name: str) -> Path:
        """A program that one of the packages brings."""
        return self.folder / "bin" / name

    def check(self) -> None:
        """Raises ``HarnessMissing`` with the remedy unless it is installed whole, at this lock."""
        if not is_whole(self.folder, self._content):
            raise HarnessMissing(
                f"{self.name} {self.version} is not installed in {self.folder}; "
                f"run: python -m harness_adapters.environments {self.name}"
            )

    def install(self) -> None:
        """Makes the environment unless it is there. Raises ``HarnessMissing`` if Python or a package cannot be had."""
        python = find_python(self.python, self.name)
        with building(self.folder, self._content) as needed:
            if not needed:
                return
            # Without a pip of its own: putting one in takes longer than everything else but the downloads.
            run(
                [python, "-m", "venv", "--without-pip", str(self.folder)], f"{self.name}: no environment made"
            )
            pip = [
                sys.executable,
                "-m",
                "pip",
                "--disable-pip-version-check",
                "--python",
                str(self.interpreter),
            ]
            options = ["--no-input", "--no-deps", "-r", str(self.lock)]
            run([*pip, "install", *options], f"pip could not install {self.name}")


@functools.cache
def find_python(version: str, wanted_by: str) -> str:
    """An interpreter of ``version`` (``major.minor``): this one, one on PATH or one of pyenv's.

    Raises ``HarnessMissing``. Each candidate is asked: a shim of pyenv may stand for a version that is not active.
    """
    candidates = [sys.executable, shutil.which(f"python{version}") or ""]
    pyenv = Path(os.environ.get("PYENV_ROOT") or "~/.pyenv").expanduser() / "versions"
    candidates += [str(path / "bin" / "python") for path in sorted(pyenv.glob(f"{version}.*"))]
    question = "import sys, venv; print('%d.%d' % sys.version_info[:2])"
    for candidate in filter(None, candidates):
        try:
            asked = subprocess.run([candidate, "-c", question], capture_output=True, text=True, timeout=60)
        except (OSError, subprocess.TimeoutExpired):
            continue
        if asked.returncode == 0 and asked.stdout.strip() == version:
            return candidate
    raise HarnessMissing(
        f"{wanted_by} needs Python {version}, and none with venv is on PATH or in pyenv; install python{version}"
    )


def run(command: list[str], failure: str) -> str:
    """Its standard output. Raises ``HarnessMissing`` of ``failure`` and the command's own last words."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, env=environment
        )
    except subprocess.TimeoutExpired:
        raise HarnessMissing(f"{failure} within {INSTALL_TIMEOUT_S:g} s") from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[-500:]
        raise HarnessMissing(f"{failure}: {words}")
    return done.stdout
