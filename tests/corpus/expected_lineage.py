"""What lineage must find in each recorded file, written by hand from reading the files.

Numbers are those of the file's POST requests, from 0. Where a file is not named in ``SPECIAL``, its requests are one main
line without forks.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.corpus.traffic import FOLDER, requests

Message = dict[str, Any]


@dataclass(frozen=True)
class Expected:
    main: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...] = ()
    side: tuple[int, ...] = ()
    duplicates: Mapping[int, int] = field(default_factory=dict)
    """Call that does not count -> the one with the same prompt that does."""
    forks: Mapping[int, str] = field(default_factory=dict)
    failed: tuple[int, ...] = ()
    """Requests that the recording server answered with an error."""
    at_once: Mapping[int, int] = field(default_factory=dict)
    """Request -> the one that it ran beside."""
    says: Mapping[int, Message] = field(default_factory=dict)
    """Replies that no later request sends back on the history that they were said to."""


def said(text: str | None, *calls: tuple[str, str, dict[str, Any]]) -> Message:
    """A reply; ``calls``: id, name, arguments."""
    listed = [
        {"id": id, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        for id, name, arguments in calls
    ]
    return {"role": "assistant", "content": text, **({"tool_calls": listed} if listed else {})}


WORKED = said(
    "I nodi til a votimir.", ("call_1", "bash", {"command": "echo hello-from-mock > mock_out.txt; ls"})
)
SUMMARY = said("Zuk gula. I guralar nezu_sot.tim.")
SPECIAL: dict[str, Expected] = {
    # a stateful API: the second request names the first's reply and holds a tool's result alone
    "agent-framework": Expected(
        (0, 1), says={0: said(None, ("call_e271296666764236", "get_weather", {"city": "Paris"}))}
    ),
    # few-shot replies in the first request were said by nobody; then a commit message is asked for
    "aider": Expected((0,), side=(1,), forks={0: "unrecorded_history"}),
    # the reflecting step has no tools
    "autogen": Expected((0, 1), forks={1: "tools_changed"}),
    # a title beside the first turn
    "claude-code": Expected((1, 2), side=(0,), at_once={1: 0}),
    # the same, and both were answered 500 at first
    "claude-code-e500": Expected(
        (3, 4), side=(2,), failed=(0, 1), duplicates={0: 2, 1: 3}, at_once={1: 0, 3: 2}
    ),
    "codex-e500": Expected((2, 3), failed=(0, 1), duplicates={0: 2, 1: 2}),
    # a sub-agent under its own thread-id; the main agent goes on at once
    "codex-sub": Expected((0, 1), branches=((2,),), at_once={2: 1}),
    # a title between the first two turns
    "gptme": Expected((0, 2, 3, 4), side=(1,)),
    # two runs of one task, one after the other; their replies differ in nothing but ids
    "mini-swe-agent": Expected((0, 1, 2, 3), forks={2: "restarted"}),
    # the last message of each request is there for that request only
    "openclaw": Expected(
        (0, 1),
        forks={1: "message_removed:2"},
        says={0: said("I nodi til a votimir.", ("call_6e2cb95a63f848a7", "exec", {"command": "echo hello-from-mock > mock_out.txt; ls"}))},
    ),
    "opencode": Expected((1, 2), side=(0,), at_once={1: 0}),
    "opencode-anthropic": Expected((1, 2), side=(0,), at_once={1: 0}),
    # compacted after every turn: a summary is asked for under another system prompt, then the work goes on from it
    "opencode-compact": Expected(
        (1, 2, 3, 4, 5, 6, 7),
        side=(0,),
        forks={3: "compaction", 5: "compaction", 7: "compaction"},
        at_once={1: 0},
        says={1: WORKED, 2: SUMMARY, 3: WORKED, 4: SUMMARY, 5: WORKED, 6: SUMMARY},
    ),
}  # fmt: skip
NAMES = sorted(path.stem for path in FOLDER.glob("*.jsonl"))


def expected(name: str) -> Expected:
    count = sum(request["method"] == "POST" for request in requests(name))
    return SPECIAL.get(name) or Expected(tuple(range(count)))
