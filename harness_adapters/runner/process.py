"""Runs one program under a time limit and ends everything that it started.

A harness forks: shells, servers, its own sub-agents. The program gets a session of its own, so that one signal reaches
its whole process group; what left the group (a daemon, a shell started in a new session) is found by the marker that
it inherited in its environment. Ends on success too: a background process left by a finished agent would go on calling
the model under a dead key.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from harness_adapters.protocol import Finished, Launch

MARKER = "SINGLETREE_ROLLOUT"
"""Environment variable that every process of a rollout inherits; its value is the rollout's id."""
TAIL_BYTES = 64 * 1024
"""Output kept per stream: the last bytes."""
GRACE_S = 2.0
"""Between SIGTERM and SIGKILL."""
KILL_WAIT_S = 5.0
"""How long SIGKILL is repeated; a process in uninterruptible sleep can outlive it."""


async def run_process(launch: Launch, *, marker: str, timeout_s: float) -> Finished:
    """Run ``launch`` for at most ``timeout_s`` seconds; on return or cancellation no process of it lives.

    Raises ``OSError`` if the program cannot be started.
    """
    started = time.monotonic()
    process: asyncio.subprocess.Process | None = None
    timed_out = False
    try:
        process = await spawn(launch, marker)
        readers = [asyncio.create_task(read_tail(stream)) for stream in (process.stdout, process.stderr)]
        try:
            async with asyncio.timeout(timeout_s):
                await feed(process, launch.stdin)
                await exited(process)
        except TimeoutError:
            timed_out = True
    finally:
        await finish_despite_cancellation(end_process(process, marker))
    assert process is not None
    # The pipes close with the last process that holds them; those were all just ended.
    done, pending = await asyncio.wait(readers, timeout=GRACE_S)
    for reader in pending:
        reader.cancel()
    stdout, stderr = (reader.result() if reader in done else "" for reader in readers)
    return Finished(
        exit_code=None if timed_out else process.returncode,
        timed_out=timed_out,
        stdout=stdout,
        stderr=stderr,
        duration_s=time.monotonic() - started,
    )


async def spawn(launch: Launch, marker: str) -> asyncio.subprocess.Process:
    """Start the program in a session of its own, marked."""
    return await asyncio.create_subprocess_exec(
        *launch.argv,
        env={**launch.env, MARKER: marker},
        cwd=launch.cwd,
        stdin=asyncio.subprocess.PIPE if launch.stdin else asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )


async def exited(process: asyncio.subprocess.Process) -> None:
    """Wait for the program alone; ``wait()`` may also wait for a child that holds its output open."""
    waiting = asyncio.create_task(process.wait())
    try:
        while process.returncode is None:
            await asyncio.wait([waiting], timeout=0.2)
    finally:
        waiting.cancel()


async def feed(process: asyncio.subprocess.Process, data: bytes) -> None:
    """Write ``data`` to standard input and close it; a program that does not read it is not an error."""
    if process.stdin is None:
        return
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(data)
        await process.stdin.drain()
    process.stdin.close()


async def read_tail(stream: asyncio.StreamReader | None, limit: int = TAIL_BYTES) -> str:
    """Read to the end, keeping the last ``limit`` bytes; decoded with replacement."""
    tail = bytearray()
    while stream is not None and (chunk := await stream.read(65536)):
        tail += chunk
        del tail[:-limit]
    return tail.decode(errors="replace")


async def finish_despite_cancellation(work: Coroutine[Any, Any, None]) -> None:
    """Await a clean-up to its end even if the awaiting task is cancelled meanwhile; then let the cancellation through."""
    task = asyncio.create_task(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if task.done():
                break
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled


async def end_process(process: asyncio.subprocess.Process | None, marker: str) -> None:
    """SIGTERM to the group and to strays, SIGKILL to what is left after ``GRACE_S`` seconds."""
    group = process.pid if process is not None else None
    give_up_at = time.monotonic() + GRACE_S
    alive = signal_all(group, marker, signal.SIGTERM)
    while alive and time.monotonic() < give_up_at:
        await asyncio.sleep(0.05)
        alive = bool(live_pids(group, marker))
    give_up_at = time.monotonic() + KILL_WAIT_S
    while alive and time.monotonic() < give_up_at:
        # Again and again: a process that is just being forked can slip through one pass.
        alive = signal_all(group, marker, signal.SIGKILL)
        await asyncio.sleep(0.02)
    if process is not None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(KILL_WAIT_S):
                await exited(process)


def signal_all(group: int | None, marker: str, signum: int) -> bool:
    """Signal the process group and every process that carries the marker; return whether any was alive."""
    pids = live_pids(group, marker)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
    return bool(pids)


def live_pids(group: int | None, marker: str) -> set[int]:
    """Processes of the group or with the marker, zombies and this process left out."""
    return set(marked_pids(marker)) | set(group_pids(group) if group is not None else ())


def marked_pids(marker: str) -> list[int]:
    """Live processes of this user that inherited ``SINGLETREE_ROLLOUT=marker``, never this one (Linux: /proc)."""
    wanted = f"{MARKER}={marker}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(entry.name))
    return found


def group_pids(group: int) -> list[int]:
    """Live members of the process group, zombies left out (Linux: /proc)."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        # "pid (name) state ppid pgrp ...": the name may hold spaces and brackets, so read from its last bracket.
        state, _, pgrp = stat[stat.rindex(")") + 2 :].split()[:3]
        if int(pgrp) == group and state != "Z":
            found.append(int(entry.name))
    return found
