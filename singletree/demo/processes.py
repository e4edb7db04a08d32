"""Starts the demo's processes, each in a session of its own with a log of its own, and stops every one of them.

Whatever ends the demo (success, an error, Ctrl-C, SIGTERM), ``stop_all`` ends each process that was started and all
that those started, by their process ids; the kernel ends them too if the demo itself is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from singletree.demo.errors import ProcessFailed, Stalled

GRACE_S = 12.0
"""An idle vLLM ends in 2 s; the trainer may be in the middle of writing a checkpoint."""
POLL_S = 0.25
_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Between fork and exec (Linux): SIGTERM to the child when this process is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def free_port() -> int:
    """A loopback port that nobody listened on a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass
class Child:
    """One process that the demo started."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    service: bool
    """True if it must keep running; its end is then an error."""

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None


class Supervisor:
    """The processes of one demo run."""

    def __init__(self, logs: Path, environment: Mapping[str, str] | None = None) -> None:
        """``environment``: the processes' whole environment; None for this process's own."""
        logs.mkdir(parents=True, exist_ok=True)
        self.logs = logs
        self._environment = dict(os.environ if environment is None else environment)
        self.children: list[Child] = []

    def start(
        self, name: str, argv: list[str], *, service: bool = True, env: Mapping[str, str] | None = None
    ) -> Child:
        """Start ``argv`` with ``env`` added to the environment; output goes to ``logs/<name>.log``."""
        log = self.logs / f"{name}.log"
        with log.open("ab") as output:
            process = subprocess.Popen(
                argv,
                env={**self._environment, **(env or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )
        child = Child(name, process, log, service)
        self.children.append(child)
        return child

    def check(self) -> None:
        """Raise ProcessFailed if a service has ended, or anything else has ended with an error."""
        for child in self.children:
            if child.ended and (child.service or child.process.returncode != 0):
                raise ProcessFailed(
                    f"the demo's {child.name} ended with exit code {child.process.returncode}: {last_words(child.log)}"
                    f" (log: {child.log})",
                    child.log,
                )

    def until(
        self,
        done: Callable[[], bool],
        *,
        what: str,
        timeout_s: float,
        poll_s: float = POLL_S,
        progress: Callable[[], object] | None = None,
    ) -> None:
        """Wait until ``done()``, watching all processes. With ``progress``, ``timeout_s`` counts from its last change.

        Raises ProcessFailed, or Stalled naming ``what``.
        """
        seen: object = None
        deadline = time.monotonic() + timeout_s
        while not done():
            self.check()
            if progress is not None and (now := progress()) != seen:
                seen, deadline = now, time.monotonic() + timeout_s
            if time.monotonic() > deadline:
                raise Stalled(f"{what}: nothing happened for {timeout_s:.0f} s; see the logs in {self.logs}")
            time.sleep(poll_s)

    def stop(self, child: Child, grace_s: float = GRACE_S) -> None:
        """End one process and its descendants; safe to call twice. Its end is no error from now on."""
        if child in self.children:
            self.children.remove(child)
        stop_tree([child.process], grace_s)

    def stop_all(self, grace_s: float = GRACE_S) -> None:
        """End every process that was started and everything that those started."""
        children, self.children = self.children, []
        stop_tree([child.process for child in reversed(children)], grace_s)


def stop_tree(processes: list[subprocess.Popen[bytes]], grace_s: float) -> None:
    """SIGTERM to each, then SIGKILL to what is left of them and their descendants after ``grace_s`` seconds."""
    tree: set[psutil.Process] = set()
    for process in processes:
        if process.poll() is None:
            with contextlib.suppress(psutil.NoSuchProcess):
                tree.update(psutil.Process(process.pid).children(recursive=True))
            process.terminate()
    deadline = time.monotonic() + grace_s
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.poll() is None:
            process.kill()
            process.wait()
    for orphan in tree:
        with contextlib.suppress(psutil.NoSuchProcess):
            orphan.kill()
    psutil.wait_procs(tree, timeout=2.0)


def tail(log: Path, lines: int = 15) -> str:
    """The last ``lines`` lines of a log; empty if there is none."""
    if not log.is_file():
        return ""
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])


def last_words(log: Path) -> str:
    """The last line of a log that says something."""
    return next(
        (line.strip() for line in reversed(tail(log).splitlines()) if line.strip()), "it said nothing"
    )[-300:]


class MemoryWatch:
    """Samples the summed resident memory of this process and all its descendants, in a thread.

    Pages that processes share are counted in each: the sum is an upper bound.
    """

    def __init__(self, every_s: float = 2.0) -> None:
        self.peak_bytes = 0
        self._every_s = every_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-watch", daemon=True)

    def sample(self) -> int:
        """Bytes now; raises the peak."""
        me = psutil.Process()
        total = 0
        for process in [me, *me.children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                total += process.memory_info().rss
        self.peak_bytes = max(self.peak_bytes, total)
        return total

    def _run(self) -> None:
        while not self._stop.wait(self._every_s):
            self.sample()

    @contextlib.contextmanager
    def running(self) -> Iterator[MemoryWatch]:
        self._thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            self._thread.join()
