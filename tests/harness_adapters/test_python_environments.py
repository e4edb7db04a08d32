"""Environments of Python harnesses: filled from a lock by the right interpreter; and what a driver's report becomes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from harness_adapters.build import make_adapter
from harness_adapters.config import PythonHarness
from harness_adapters.drivers.reporting import whose_fault
from harness_adapters.environments import python
from harness_adapters.environments.python import PythonEnvironment, find_python
from harness_adapters.errors import ConfigError, HarnessMissing
from harness_adapters.protocol import Endpoint, Finished, Job, Task
from harness_adapters.python.base import REPORT
from harness_adapters.python.table import PYTHON_HARNESSES

THIS = "{}.{}".format(*sys.version_info[:2])
SMALL = PythonEnvironment("small", "1.0", python=THIS)


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINGLETREE_HARNESS_HOME", str(tmp_path / "home"))


def make_wheel(folder: Path, version: str) -> Path:
    """The smallest package that pip installs."""
    path = folder / f"small_thing-{version}-py3-none-any.whl"
    info = f"small_thing-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("small_thing.py", f"version = {version!r}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: small-thing\nVersion: {version}\n")
        wheel.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\nGenerator: x\n"
        )
        wheel.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(python, "LOCKS", tmp_path)
    path = tmp_path / "small.txt"
    path.write_text(f"{make_wheel(tmp_path, '1.0')}\n")
    return path


def installed_version() -> str:
    command = [str(SMALL.interpreter), "-c", "import small_thing; print(small_thing.version)"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def test_an_environment_holds_what_its_lock_says(lock: Path) -> None:
    SMALL.install()
    SMALL.check()
    assert installed_version() == "1.0"
    (SMALL.folder / "left").touch()
    SMALL.install()
    assert (SMALL.folder / "left").exists(), "made again without need"
    lock.write_text(f"{make_wheel(lock.parent, '1.1')}\n")
    with pytest.raises(
        HarnessMissing, match=r"small 1.0 is not installed .* run: python -m harness_adapters"
    ):
        SMALL.check()
    SMALL.install()
    assert installed_version() == "1.1" and not (SMALL.folder / "left").exists()


def test_pip_is_heard_when_it_fails(lock: Path) -> None:
    lock.write_text(str(lock.parent / "gone-1.0-py3-none-any.whl"))
    with pytest.raises(HarnessMissing, match=r"pip could not install small: .*gone-1\.0"):
        SMALL.install()
    with pytest.raises(HarnessMissing):
        SMALL.check()


def test_a_python_that_only_seems_to_be_there_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shim = tmp_path / "python3.98"
    shim.write_text("#!/bin/sh\necho 'command not found' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessMissing, match=r"small needs Python 3\.98, and none .* install python3\.98"):
        find_python("3.98", "small")
    real = tmp_path / "pyenv" / "versions" / "3.98.1" / "bin" / "python"
    real.parent.mkdir(parents=True)
    real.write_text("#!/bin/sh\necho 3.98\n")
    real.chmod(0o755)
    monkeypatch.setenv("PYENV_ROOT", str(tmp_path / "pyenv"))
    assert find_python("3.98", "another") == str(real)


@pytest.mark.parametrize("kind", PYTHON_HARNESSES)
def test_each_lock_pins_all(kind: str) -> None:
    environment = PYTHON_HARNESSES[kind].environment
    lines = environment.lock.read_text().split("\n")[:-1]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==\S+( ; .*)?", line) for line in lines)
    assert any(line.endswith(f"=={environment.version}") for line in lines)


def test_configurations_name_each_and_refuse_unknown_settings() -> None:
    kinds = PythonHarness.model_fields["kind"].annotation
    assert set(kinds.__args__) == PYTHON_HARNESSES.keys()  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"harness.settings of qwen-agent: .*'sped'"):
        make_adapter(PythonHarness(kind="qwen-agent", settings={"sped": 1}))
    with pytest.raises(HarnessMissing, match=r"run: python -m harness_adapters.environments qwen-agent$"):
        make_adapter(PythonHarness(kind="qwen-agent", settings={"use_raw_api": True}))


def job_in(folder: Path) -> Job:
    scratch, workspace = folder / "scratch", folder / "workspace"
    scratch.mkdir(parents=True)
    workspace.mkdir()
    return Job(
        "rol",
        Task({"prompt": "the task"}),
        Endpoint("http://127.0.0.1:1/v1", "st-key", "m"),
        workspace,
        scratch,
        1.0,
    )


@pytest.mark.parametrize("kind", PYTHON_HARNESSES)
def test_a_harness_sees_no_other_account(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, settings and Python paths of the runner's stay out; the rollout's key and prompt are on no command line."""
    foreign = (
        "OPENAI_API_KEY",
        "LANGSMITH_API_KEY",
        "XDG_CONFIG_HOME",
        "PYTHONPATH",
        "HF_TOKEN",
        "AIDER_MODEL",
        "PWD",
    )
    for name in foreign:
        monkeypatch.setenv(name, "mine")
    job = job_in(tmp_path)
    launch = PYTHON_HARNESSES[kind]().prepare(job)
    assert [name for name, value in launch.env.items() if value == "mine"] == []
    assert launch.env["OPENAI_API_KEY"] == "st-key" and launch.cwd == job.workspace
    assert Path(launch.env["HOME"]).is_relative_to(job.scratch)
    assert not any("st-key" in word or "the task" in word for word in launch.argv)
    assert launch.argv[0].startswith(str(tmp_path / "home"))


def test_a_report_becomes_the_outcome(tmp_path: Path) -> None:
    job, adapter = job_in(tmp_path), PYTHON_HARNESSES["langgraph"]()
    good = Finished(exit_code=0, timed_out=False, stdout="log", stderr="", duration_s=1.0)
    assert adapter.collect(job, good).failure == "error", "nothing was reported"
    call = {"name": "write_file", "arguments": {"path": "a"}}
    report = {"final_text": "done", "tool_calls": [call], "data": {}, "failure": None, "error": None}
    (job.scratch / REPORT).write_text(json.dumps(report))
    outcome = adapter.collect(job, good)
    assert (outcome.failure, outcome.final_text, outcome.tool_calls[0].arguments) == (
        None,
        "done",
        {"path": "a"},
    )
    (job.scratch / REPORT).write_text(json.dumps({**report, "failure": "upstream", "error": "no answer"}))
    bad = Finished(exit_code=1, timed_out=False, stdout="", stderr="trace", duration_s=1.0)
    assert (adapter.collect(job, bad).failure, adapter.collect(job, bad).error) == ("upstream", "no answer")
    late = Finished(exit_code=None, timed_out=True, stdout="", stderr="", duration_s=1.0)
    assert adapter.collect(job, late).failure == "timeout"


def test_whose_fault_it_was() -> None:
    class APIError(Exception):
        code = None

    class BadRequestError(APIError):
        code = "context_length_exceeded"

    class Wrapped(Exception):
        pass

    def caused(cause: Exception) -> Exception:
        error = Wrapped("of the library's own")
        error.__cause__ = cause
        return error

    assert whose_fault(caused(APIError())) == "upstream"
    assert whose_fault(caused(BadRequestError())) == "agent"
    assert whose_fault(caused(ValueError())) == "error"
