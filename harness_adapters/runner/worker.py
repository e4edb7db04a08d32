"""A warm worker process: serves many rollouts at once on one event loop.

Started as ``python -m harness_adapters.runner.worker``. It speaks JSON lines: in on standard input ``start``, ``run``
and ``cancel``, out on what was standard output ``ready`` or ``broken``, and one ``done`` per ``run``. Standard output
itself is turned to standard error first, so that a user's ``print`` cannot break the protocol. It ends when its input
ends, so that it cannot outlive a runner that was killed.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import sys
from typing import Any

from harness_adapters.protocol import Endpoint, WorkerRun

LINE_LIMIT = 64 * 1024 * 1024
"""Longest request line, bytes: a task's payload."""


class Worker:
    """Runs what it is told to; ``out`` is the file descriptor of the replies."""

    def __init__(self, out: int) -> None:
        self._out = out
        self._running: dict[str, asyncio.Task[None]] = {}
        self._run: WorkerRun | None = None

    def send(self, message: dict[str, Any]) -> None:
        data = (json.dumps(message, default=str) + "\n").encode()
        while data:
            data = data[os.write(self._out, data) :]

    async def serve(self, lines: asyncio.StreamReader) -> None:
        """Handle requests until the input ends, then cancel what is running."""
        while line := await lines.readline():
            message = json.loads(line)
            if message["op"] == "start":
                if not self.start(message["spec"]):
                    return
            elif message["op"] == "run":
                task = asyncio.create_task(self.run_one(message))
                self._running[message["id"]] = task
            elif message["op"] == "cancel" and message["id"] in self._running:
                self._running[message["id"]].cancel()
        for task in self._running.values():
            task.cancel()

    def start(self, spec: dict[str, Any]) -> bool:
        """Build the harness; tell whether that worked."""
        try:
            self._run = importlib.import_module(spec["module"]).build(spec["settings"])
        except Exception as error:
            self.send({"op": "broken", "error": one_line(error)})
            return False
        self.send({"op": "ready", "pid": os.getpid()})
        return True

    async def run_one(self, message: dict[str, Any]) -> None:
        """One rollout; whatever happens, one ``done`` is sent."""
        assert self._run is not None
        rollout_id = message["id"]
        outcome: dict[str, Any] = {"failure": "stopped", "error": "cancelled"}
        try:
            outcome = await self._run(message["task"], Endpoint(**message["endpoint"]))
        except asyncio.CancelledError:
            pass
        except (
            BaseException
        ) as error:  # a user's sys.exit() must end one rollout, not all that share the process
            outcome = {"failure": "error", "error": one_line(error)}
        finally:
            del self._running[rollout_id]
            self.send({"op": "done", "id": rollout_id, "outcome": outcome})


def one_line(error: BaseException) -> str:
    """An exception's type and message without line breaks."""
    return " ".join(f"{type(error).__name__}: {error}".split())


async def main() -> None:
    """Wire the pipes and serve."""
    out = os.dup(1)
    os.dup2(2, 1)
    lines = asyncio.StreamReader(limit=LINE_LIMIT)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    await Worker(out).serve(lines)


if __name__ == "__main__":
    asyncio.run(main())
    sys.stderr.flush()
    os._exit(0)  # a thread left by a hanging tool must not keep the process
