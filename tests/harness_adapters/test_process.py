"""A program and all that it started are gone when its rollout is."""

from __future__ import annotations

import asyncio
import os
import sys
import textwrap
import time
from pathlib import Path

import pytest

from harness_adapters.protocol import Finished, Launch
from harness_adapters.runner import process
from harness_adapters.runner.process import run_process
from tests.harness_adapters.conftest import alive_with


def launch(folder: Path, source: str, stdin: bytes = b"") -> Launch:
    script = folder / "program.py"
    script.write_text(textwrap.dedent(source))
    return Launch([sys.executable, "-S", str(script)], {"PATH": os.environ["PATH"]}, folder, stdin)


def run(folder: Path, source: str, *, marker: str, timeout_s: float = 20.0, stdin: bytes = b"") -> Finished:
    return asyncio.run(run_process(launch(folder, source, stdin), marker=marker, timeout_s=timeout_s))


FORKS = """
    import os, signal, subprocess, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if os.fork() == 0:
        time.sleep(60)
    subprocess.Popen(["sleep", "60"], start_new_session=True)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    print("forked", flush=True)
    time.sleep(60)
"""
"""A child in the group, one in another session, a daemon, and a deaf ear for SIGTERM."""


def test_nothing_of_a_hanging_program_that_forks_survives_its_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "GRACE_S", 0.3)
    started = time.monotonic()
    finished = run(tmp_path, FORKS, marker=f"hang-{os.getpid()}", timeout_s=0.7)
    assert finished.timed_out and finished.exit_code is None
    assert finished.stdout == "forked\n"
    assert alive_with(f"hang-{os.getpid()}") == set()
    assert time.monotonic() - started < 10


def test_nothing_survives_a_cancelled_run(tmp_path: Path) -> None:
    async def cancelled() -> None:
        running = asyncio.create_task(
            run_process(launch(tmp_path, FORKS), marker=f"cancel-{os.getpid()}", timeout_s=60)
        )
        while len(alive_with(f"cancel-{os.getpid()}")) < 4:  # noqa: ASYNC110 (other processes set no event)
            await asyncio.sleep(0.05)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(cancelled())
    assert alive_with(f"cancel-{os.getpid()}") == set()


def test_a_background_process_does_not_outlive_a_program_that_ended_well(tmp_path: Path) -> None:
    source = """
        import subprocess
        subprocess.Popen(["sleep", "60"], start_new_session=True)
        print("done")
    """
    started = time.monotonic()
    finished = run(tmp_path, source, marker=f"background-{os.getpid()}")
    # The sleep holds standard output open; the program's own end is what counts.
    assert (finished.exit_code, finished.timed_out, finished.stdout) == (0, False, "done\n")
    assert time.monotonic() - started < 10
    assert alive_with(f"background-{os.getpid()}") == set()


def test_standard_input_output_and_exit_code(tmp_path: Path) -> None:
    source = (
        "import sys; text = sys.stdin.read(); print(text * 2); print('bad', file=sys.stderr); sys.exit(7)"
    )
    finished = run(tmp_path, source, marker="io", stdin=b"a task")
    assert (finished.exit_code, finished.stdout, finished.stderr) == (7, "a taska task\n", "bad\n")


def test_a_program_that_does_not_read_its_input_is_no_error(tmp_path: Path) -> None:
    finished = run(tmp_path, "print('deaf')", marker="deaf", stdin=b"x" * 10_000_000)
    assert (finished.exit_code, finished.stdout) == (0, "deaf\n")


def test_only_the_tail_of_endless_output_is_kept(tmp_path: Path) -> None:
    finished = run(tmp_path, "print('x' * 5_000_000 + 'end', end='')", marker="loud")
    assert len(finished.stdout) == process.TAIL_BYTES and finished.stdout.endswith("xend")


def test_a_missing_program_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        asyncio.run(run_process(Launch(["no-such-program"], {}, tmp_path), marker="none", timeout_s=1))
