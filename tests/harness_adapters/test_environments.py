"""Environments of harnesses: made once and whole or not at all, and refused with the remedy where they are missing."""

from __future__ import annotations

import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from harness_adapters.build import make_adapter
from harness_adapters.config import RunConfig, parse_config
from harness_adapters.environments import node
from harness_adapters.environments.__main__ import main
from harness_adapters.environments.home import building, harness_home, is_whole
from harness_adapters.environments.node import NodeEnvironment
from harness_adapters.environments.table import environments
from harness_adapters.errors import ConfigError, HarnessMissing
from harness_adapters.node.table import NODE_HARNESSES

SMALL = NodeEnvironment("small", "some-package", "1.2.3", "some")


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SINGLETREE_HARNESS_HOME", str(tmp_path / "home"))


def config_of(kind: str, **settings: object) -> RunConfig:
    harness = {"kind": kind, **settings}
    fixed = {"policy": "p", "tasks": {"kind": "inline", "tasks": ["x"]}, "reward": {"kind": "none"}}
    return parse_config({"harness": harness, **fixed}, where="test")


@pytest.mark.parametrize("kind", NODE_HARNESSES)
def test_a_missing_harness_is_refused_with_the_remedy(kind: str) -> None:
    with pytest.raises(HarnessMissing, match=rf"run: python -m harness_adapters.environments {kind}$"):
        make_adapter(config_of(kind).harness)


def test_each_kind_can_be_named_and_installed() -> None:
    assert NODE_HARNESSES.keys() <= environments().keys()
    assert all(adapter.name == kind for kind, adapter in NODE_HARNESSES.items())
    with pytest.raises(ConfigError, match="windows"):
        config_of("codex", windows=3)


def test_only_a_whole_environment_of_this_version_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    installs: list[list[str]] = []
    monkeypatch.setattr(node, "machine_node", lambda least, wanted_by: tmp_path / "bin" / "node")
    monkeypatch.setattr(node, "npm_install", lambda folder, packages: installs.append(packages))
    SMALL.install()
    SMALL.install()
    SMALL.check()
    assert installs == [["some-package@1.2.3"]]
    with pytest.raises(HarnessMissing, match=r"small 1.2.4 is not installed"):
        replace(SMALL, version="1.2.4").check()


def test_one_that_fails_half_way_is_made_anew(tmp_path: Path) -> None:
    folder = tmp_path / "env"
    with pytest.raises(RuntimeError), building(folder, "x") as needed:
        assert needed
        (folder / "half").touch()
        raise RuntimeError
    assert not is_whole(folder, "x")
    with building(folder, "x") as needed:
        assert needed and not (folder / "half").exists()
    with building(folder, "x") as needed:
        assert not needed


def test_only_one_builds(tmp_path: Path) -> None:
    def build(_: int) -> bool:
        with building(tmp_path / "env", "x") as needed:
            time.sleep(0.1 * needed)
            return needed

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(build, range(8))) == [False] * 7 + [True]


def test_an_old_node_or_none_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HarnessMissing, match="small needs Node 20 or newer, and no node is on PATH"):
        SMALL.install()
    program = tmp_path / "node"
    program.write_text("#!/bin/sh\necho v18.1.0\n")
    program.chmod(0o755)
    with pytest.raises(HarnessMissing, match=r"is 18; install a newer Node"):
        SMALL.install()


def test_npm_is_heard_when_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "npm"
    program.write_text("#!/bin/sh\necho 'E404 no such package' >&2; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")
    monkeypatch.setattr(node, "machine_node", lambda least, wanted_by: tmp_path / "node")
    with pytest.raises(HarnessMissing, match=r"could not install some-package@1\.2\.3: E404 no such package"):
        SMALL.install()
    assert not SMALL.program_path.exists() and not is_whole(SMALL.folder, "some-package@1.2.3")


def test_the_command_lists_and_refuses(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert set(capsys.readouterr().out.split()) == environments().keys()
    assert main(["nobody"]) == 2
    assert "there are: " in capsys.readouterr().err


def test_a_harness_sees_no_other_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys, settings folders and the runner's own place stay out of its environment."""
    from harness_adapters.protocol import Endpoint, Job, Task

    if shutil.which("node") is None or subprocess.run(["node", "--version"], capture_output=True).returncode:
        pytest.skip("needs node")
    for name in (
        "OPENAI_API_KEY",
        "CLAUDE_CONFIG_DIR",
        "CODEX_HOME",
        "XDG_CONFIG_HOME",
        "GITHUB_TOKEN",
        "PWD",
    ):
        monkeypatch.setenv(name, "mine")
    for kind, adapter in NODE_HARNESSES.items():
        scratch, workspace = tmp_path / kind / "scratch", tmp_path / kind / "workspace"
        scratch.mkdir(parents=True)
        workspace.mkdir()
        endpoint = Endpoint("http://127.0.0.1:1/v1", "st-key", "m")
        launch = adapter().prepare(Job("rol", Task({"prompt": "x"}), endpoint, workspace, scratch, 1.0))
        assert [name for name, value in launch.env.items() if value == "mine"] == [], kind
        assert (launch.env["PWD"], launch.cwd) == (str(workspace), workspace)
        assert Path(launch.env["HOME"]).is_relative_to(scratch)
        assert not any("st-key" in word for word in launch.argv), (
            f"{kind}: any user of the machine can read it"
        )
        assert launch.argv[0] == str(adapter.environment.program_path) or launch.argv[0] == "/bin/sh"
        assert Path(launch.env["PATH"].split(":")[0]).name == "bin"
    assert harness_home() == tmp_path / "home"
