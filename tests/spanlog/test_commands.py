"""``singletree db`` and ``singletree inspect`` on both databases: what a person types, and what comes back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from singletree.cli import main
from spanlog.writer import SpanWriter
from tests.spanlog.world import World


def run(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    monkeypatch.setattr("sys.argv", ["singletree", *arguments])
    monkeypatch.setenv("COLUMNS", "400")
    with pytest.raises(SystemExit) as left:
        main()
    output = capsys.readouterr()
    return int(left.value.code or 0), output.out, output.err


def test_the_schema_by_hand(
    make_url: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = make_url(migrated=False)
    code, _, error = run(["db", "check", "--database", url], monkeypatch, capsys)
    assert (
        code == 3
        and error.startswith("error: ")
        and error.count("\n") == 1
        and "singletree db upgrade" in error
    )
    code, output, _ = run(["db", "upgrade", "--database", url], monkeypatch, capsys)
    assert code == 0 and "is at revision" in output
    assert run(["db", "check", "--database", url], monkeypatch, capsys)[0] == 0
    assert run(["db", "downgrade", "base", "--yes", "--database", url], monkeypatch, capsys)[0] == 0
    assert run(["db", "check", "--database", url], monkeypatch, capsys)[0] == 3


def test_looking_at_what_was_recorded(
    world: World, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rollout = world.group(size=1).rollouts[0].id
    world.claim(rollout)
    writer = SpanWriter(world.database)
    reply = {"message": {"content": "four [bold] \x1b[31m", "tool_calls": [{"function": {"name": "add"}}]}}
    writer.submit(world.draft(rollout, reply=reply, finish_reason="stop")).result(10)
    writer.close()
    world.reward(rollout, 0.5)
    world.finish(rollout)
    fence = world.take_over()
    world.commit(fence, world.lease(1, fence), 1, 1)
    database = ["--database", world.database.url.render_as_string(hide_password=False)]
    code, output, _ = run(["inspect", "rollouts", "--policy", world.policy, *database], monkeypatch, capsys)
    assert code == 0 and rollout in output and "consumed" in output and "0.5" in output
    code, output, _ = run(["inspect", "rollout", rollout, *database], monkeypatch, capsys)
    assert code == 0 and "four [bold]" in output and '"add"' in output and "\x1b[31m" not in output
    code, output, _ = run(["inspect", "steps", "--policy", world.policy, *database], monkeypatch, capsys)
    assert code == 0 and "loss 0.5" in output
    code, _, error = run(["inspect", "rollout", "nowhere", *database], monkeypatch, capsys)
    assert code == 1 and error == "error: no rollout nowhere\n"
