"""The demo's processes: every one that was started is stopped, and a failure names its log."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from singletree.demo.errors import ProcessFailed, Stalled
from singletree.demo.processes import MemoryWatch, Supervisor, tail

PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(child.pid, flush=True)
time.sleep(60)
"""
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def wait_for_line(log: Path) -> str:
    deadline = time.monotonic() + 10
    while not (text := tail(log)):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return text


def gone(pid: int) -> bool:
    deadline = time.monotonic() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def test_grandchildren_in_other_sessions_are_stopped_too(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    child = supervisor.start("parent", [sys.executable, "-c", PARENT])
    grandchild = int(wait_for_line(child.log))
    supervisor.stop_all()
    assert gone(child.process.pid) and gone(grandchild)


def test_what_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    child = supervisor.start("stubborn", [sys.executable, "-c", STUBBORN])
    wait_for_line(child.log)
    supervisor.stop_all(grace_s=0.2)
    assert child.process.returncode == -signal.SIGKILL


def test_a_dead_service_is_an_error_with_its_last_words(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    supervisor.start("proxy", [sys.executable, "-c", "import sys; sys.exit('error: port taken')"])
    with pytest.raises(ProcessFailed, match=r"proxy ended with exit code 1: error: port taken") as raised:
        supervisor.until(lambda: False, what="x", timeout_s=10, poll_s=0.02)
    assert raised.value.log == tmp_path / "proxy.log"
    supervisor.stop_all()


def test_a_job_may_end_well_but_not_badly(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    job = supervisor.start("job", [sys.executable, "-c", "pass"], service=False)
    supervisor.until(lambda: job.ended, what="job", timeout_s=10, poll_s=0.02)
    supervisor.check()
    bad = supervisor.start("bad", [sys.executable, "-c", "raise SystemExit(3)"], service=False)
    bad.process.wait()
    with pytest.raises(ProcessFailed, match="exit code 3"):
        supervisor.check()


def test_waiting_ends_when_nothing_moves_and_goes_on_while_something_does(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    with pytest.raises(Stalled, match="the phase"):
        supervisor.until(lambda: False, what="the phase", timeout_s=0.1, poll_s=0.01)
    count = iter(range(1000))
    end = time.monotonic() + 0.4
    supervisor.until(
        lambda: time.monotonic() > end, what="x", timeout_s=0.1, poll_s=0.01, progress=lambda: next(count)
    )


def test_processes_end_when_the_demo_is_killed(tmp_path: Path) -> None:
    script = f"""
import sys, time
from pathlib import Path
from singletree.demo.processes import Supervisor
child = Supervisor(Path({str(tmp_path)!r})).start("c", [sys.executable, "-c", "import time; time.sleep(60)"])
print(child.process.pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as demo:
        assert demo.stdout is not None
        pid = int(demo.stdout.readline())
        os.kill(demo.pid, signal.SIGKILL)
    assert gone(pid)


def test_memory_counts_children(tmp_path: Path) -> None:
    supervisor = Supervisor(tmp_path)
    script = "block = bytearray(64 << 20); print('up', flush=True); import time; time.sleep(60)"
    before = MemoryWatch().sample()
    child = supervisor.start("big", [sys.executable, "-c", script])
    wait_for_line(child.log)
    assert MemoryWatch().sample() - before > 60 << 20
    supervisor.stop_all()
