"""The command as its users meet it: a mistake of theirs ends in one line with the remedy and a proper exit code.

``main`` is called in this process, where anything but SystemExit would be the traceback that no user may see."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from singletree.cli import main


class Result(NamedTuple):
    exit_code: int
    out: str
    err: str


Run = Callable[..., Result]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """``run(*arguments)`` in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SINGLETREE_DATABASE_URL", raising=False)

    def call(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["singletree", *arguments])
        code = 0
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        captured = capsys.readouterr()
        return Result(code, str(captured.out), str(captured.err))

    return call


def test_the_schema_goes_up_and_down(run: Run) -> None:
    missing = run("db", "check")
    assert missing.exit_code != 0
    assert "singletree db upgrade" in missing.err
    assert run("db", "upgrade").exit_code == 0
    assert run("db", "check").exit_code == 0
    assert run("db", "downgrade", "base", "--yes").exit_code == 0
    assert run("db", "check").exit_code != 0


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["db", "upgrade", "--database", "mysql://host/name"], "use sqlite:///file or postgresql://"),
        (["db", "upgrade", "--database", "sqlite:////proc/none/x.db"], "create its folder"),
        (["db", "check", "--database", "postgresql://127.0.0.1:1/x"], "127.0.0.1:1"),
        (["train", "nowhere.yaml"], "give the path of a YAML file"),
        (["engine", "start", "nowhere"], "singletree engine install"),
    ],
)
def test_a_mistake_is_one_line_with_its_remedy(
    run: Run, arguments: list[str], remedy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SINGLETREE_ENGINE_HOME", str(tmp_path / "none"))
    result = run(*arguments)
    assert result.exit_code != 0
    assert result.err.startswith("error: ")
    assert len(result.err.splitlines()) == 1, result.err
    assert remedy in result.err


@pytest.mark.parametrize("proxy", ["http://127.0.0.1:87O0", "http://[::1", "127.0.0.1:8700", "http://:80"])
def test_a_proxy_that_is_no_url_is_named(run: Run, proxy: str) -> None:
    result = run("run", "--policy", "p", "--task", "t", "--proxy", proxy, "--", "true")
    assert (result.exit_code, len(result.err.splitlines())) == (2, 1), result.err
    assert "is no http URL" in result.err


def test_a_missing_library_is_named(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psutil", None)
    monkeypatch.delitem(sys.modules, "singletree.demo.processes", raising=False)
    result = run("demo", "--output", "x")
    assert result.exit_code == 2
    assert result.err.startswith("error: psutil is not installed") and len(result.err.splitlines()) == 1


def test_an_unknown_command_is_a_usage_error(run: Run) -> None:
    result = run("fly")
    assert result.exit_code == 2
    assert "No such command 'fly'" in result.err


def test_a_policy_needs_a_proxy_and_its_key(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SINGLETREE_KEY", raising=False)
    monkeypatch.delenv("SINGLETREE_KEYS_FILE", raising=False)
    policy = ("policy", "mine", "--proxy", "http://127.0.0.1:9")
    for arguments, remedy in (
        (policy, "give --key, --keys-file or $SINGLETREE_KEY"),
        ((*policy, "--keys-file", "none.json"), "`singletree serve` writes it"),
        ((*policy, "--key", "k"), "start it with `singletree serve`"),
    ):
        result = run(*arguments)
        assert (result.exit_code, len(result.err.splitlines())) == (8, 1), result.err
        assert remedy in result.err
