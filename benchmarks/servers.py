"""Starts the processes that are measured, finds out when they answer and what CPU they used, and ends them."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil

START_TIMEOUT_S = 60.0


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and its living children; the kernel counts in steps of 10 ms."""
    process = psutil.Process(pid)
    times = [process.cpu_times(), *(child.cpu_times() for child in process.children(recursive=True))]
    return sum(each.user + each.system for each in times)


@contextlib.contextmanager
def running(argv: list[str], ready_url: str, log: Path, **environment: str) -> Iterator[int]:
    """A child process that answers at ``ready_url`` (with any status); yields its pid and ends it.

    Raises RuntimeError with the end of its log if it ends or stays silent.
    """
    with log.open("wb") as output:
        child = subprocess.Popen(argv, stdout=output, stderr=output, env=os.environ | environment)
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while True:
            with contextlib.suppress(httpx.TransportError):
                httpx.get(ready_url, timeout=2.0, trust_env=False)
                break
            if child.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{argv[0]} did not start: {log.read_text(errors='replace')[-2000:]}")
            time.sleep(0.1)
        yield child.pid
    finally:
        child.terminate()
        try:
            child.wait(15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
