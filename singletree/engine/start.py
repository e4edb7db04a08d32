"""Runs vLLM as a child in a process group of its own, and leaves nothing of it behind.

vLLM is several processes; a stop goes to the first one and, if that is not enough in time, to the whole group. The
child is told by the kernel to end when this process dies, so that a killed parent leaves no engine running.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import IO

import httpx

from singletree.engine.errors import PortTaken, StartFailed
from singletree.engine.home import InstalledEngine
from singletree.engine.launch import EngineOptions, build_launch, check_model_folder

START_TIMEOUT_S = 600.0
"""A 135M model is up in 20 s on 2 cores; a large one on a cold disk takes minutes."""
STOP_GRACE_S = 10.0
"""An idle vLLM ends in 2 s; with a request in flight it waits for its client, so it is killed after this."""


class EngineServer:
    """One vLLM child process."""

    def __init__(self, options: EngineOptions, engine: InstalledEngine, *, log: Path | None = None) -> None:
        """``log`` receives vLLM's output (appended); without it the output goes to this process's own."""
        self.options = options
        self.engine = engine
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def base_url(self) -> str:
        return self.options.base_url

    def start(self) -> None:
        """Starts vLLM and returns at once.

        Raises ``ModelFolderInvalid`` or ``PortTaken`` before anything is started.
        """
        check_model_folder(self.options.model)
        ensure_port_is_free(self.options.host, self.options.port)
        launch = build_launch(self.options, self.engine, os.environ)
        with self._output() as output:
            self.process = subprocess.Popen(
                launch.argv,
                env=launch.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT if output is not None else None,
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    def wait_ready(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Returns once /health answers 200. Raises ``StartFailed`` if vLLM ends first, or after ``timeout_s``."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.process is None or self.process.poll() is not None:
                raise StartFailed(f"vLLM ended while starting{self._last_words()}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.base_url}/health", timeout=2.0, trust_env=False).status_code == 200:
                    return
            time.sleep(0.2)
        self.stop()
        raise StartFailed(f"vLLM was not healthy after {timeout_s:.0f} s{self._last_words()}")

    def wait(self) -> int:
        """Returns vLLM's exit code once it has ended."""
        if self.process is None:
            raise StartFailed("vLLM was not started")
        return self.process.wait()

    def stop(self, grace_s: float = STOP_GRACE_S) -> None:
        """Ends vLLM and everything it started; safe to call twice."""
        process = self.process
        if process is None:
            return
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(grace_s)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        self.process = None

    def kill(self) -> None:
        """SIGKILL to the whole group: what a crash looks like."""
        self.stop(grace_s=0.0)

    def _output(self) -> contextlib.AbstractContextManager[IO[bytes] | None]:
        if self.log is None:
            return contextlib.nullcontext()
        self.log.parent.mkdir(parents=True, exist_ok=True)
        return self.log.open("ab")

    def _last_words(self) -> str:
        """The last line that names an error, and where the rest is."""
        if self.log is None:
            return "; its own output above says why"
        lines = self.log.read_text(errors="replace").splitlines()[-200:]
        errors = [line.strip() for line in lines if "Error" in line]
        return (f": {errors[-1][-300:]}" if errors else "") + f" (log: {self.log})"


def ensure_port_is_free(host: str, port: int) -> None:
    """Raises ``PortTaken`` if something listens on ``host:port``."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise PortTaken(
                f"cannot listen on {host}:{port} ({error.strerror}); choose another --port"
            ) from error


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listened on a moment ago."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return probe.getsockname()[1]


_libc = ctypes.CDLL(None)
_PR_SET_PDEATHSIG = 1


def _die_with_parent() -> None:
    """Runs in the child between fork and exec (Linux): SIGTERM when the thread that started it is gone."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
