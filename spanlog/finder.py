"""Looks up recorded turns for many calls at once: one thread, one query for all that asked during the last one.

A query of its own for each call, in a thread of a pool, costs many times its own work beside a busy event loop: every
step of it waits for Python's global lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass

from spanlog.database import Database
from spanlog.matching import Candidate, find_candidates

MOST_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A rollout, context hashes (longest history first), and who asked."""

    rollout_id: str
    hashes: Sequence[str]
    answer: asyncio.Future[list[Candidate]]


class Finder:
    """``find`` from any event loop; ``close`` when none will ask again."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._queue: queue.SimpleQueue[Question | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="turn-finder", daemon=True)
        self._thread.start()

    async def find(self, rollout_id: str, hashes: Sequence[str]) -> list[Candidate]:
        """As ``matching.find_candidates``. Raises SpanlogError."""
        answer: asyncio.Future[list[Candidate]] = asyncio.get_running_loop().create_future()
        self._queue.put(Question(rollout_id, hashes, answer))
        return await answer

    def close(self) -> None:
        """Answers what was asked, then stops; safe to call twice."""
        self._queue.put(None)
        self._thread.join()

    def _run(self) -> None:
        while True:
            asked = [self._queue.get()]
            while len(asked) < MOST_AT_ONCE and asked[-1] is not None:
                try:
                    asked.append(self._queue.get_nowait())
                except queue.Empty:
                    break
            questions = [question for question in asked if question is not None]
            if questions:
                self._answer(questions)
            if asked[-1] is None:
                return

    def _answer(self, questions: list[Question]) -> None:
        found: Sequence[list[Candidate]] | Exception
        try:
            with self._database.read() as conn:
                found = find_candidates(conn, [(one.rollout_id, one.hashes) for one in questions])
        except Exception as error:
            found = error
        by_loop: dict[asyncio.AbstractEventLoop, list[int]] = {}
        for place, question in enumerate(questions):
            by_loop.setdefault(question.answer.get_loop(), []).append(place)
        for loop, places in by_loop.items():
            with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(tell, [questions[place] for place in places], found, places)


def tell(
    questions: Sequence[Question], found: Sequence[list[Candidate]] | Exception, places: Sequence[int]
) -> None:
    for question, place in zip(questions, places, strict=True):
        if question.answer.done():  # the caller has left
            continue
        if isinstance(found, Exception):
            question.answer.set_exception(found)
        else:
            question.answer.set_result(found[place])
