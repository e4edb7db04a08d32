"""A process that writes spans and prints each id once its future resolves; the test kills it [I3].

Arguments: database URL, policy, engine, rollout.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import Future

from spanlog.database import open_database
from spanlog.writer import SpanDraft, SpanSummary, SpanWriter

IN_FLIGHT = 16


def main(url: str, policy: str, engine: str, rollout: str) -> None:
    """Write until killed."""
    writer = SpanWriter(open_database(url, migrate=False))
    room = threading.Semaphore(IN_FLIGHT)
    printing = threading.Lock()

    def acknowledge(future: Future[SpanSummary]) -> None:
        with printing:
            sys.stdout.write(f"{future.result().id}\n")
            sys.stdout.flush()
        room.release()

    while True:
        room.acquire()
        draft = SpanDraft(
            rollout_id=rollout,
            policy_id=policy,
            engine_id=engine,
            started_at=time.time(),
            ended_at=time.time(),
            request=b"{}" * 50,
            reply={"message": {"content": str(time.time())}},
            completion_tokens=[1, 2, 3],
            logprobs=[-1.0, -1.0, -1.0],
        )
        writer.submit(draft).add_done_callback(acknowledge)


if __name__ == "__main__":
    main(*sys.argv[1:])
