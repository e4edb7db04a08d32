"""Random rollouts whose lineage is known: an agent, its sub-agents, side calls, retries and compaction, as several proxies
saw them.

A rollout is played in virtual time, call by call. What a harness sends is a history of messages; tokens are made so that
equal histories have equal tokens and a call's prompt extends its parent's tokens, as in exact mode.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

from spanlog.canonical import (
    canonical_message,
    canonical_tools,
    context_hashes,
    context_key,
    digest,
    extend_hash,
)
from spanlog.lineage import LineageSpan, Role
from spanlog.lineage.span import BARE, argument_texts, read_items, read_said, read_system
from spanlog.matching import read_echo
from spanlog.states import Delivery, SpanStatus

Message = dict[str, Any]
MAIN_TOOLS = [
    {"type": "function", "function": {"name": "bash"}},
    {"type": "function", "function": {"name": "task"}},
]
SUB_TOOLS = [{"type": "function", "function": {"name": "read"}}]


@dataclass
class Truth:
    """What lineage must find."""

    main: list[str] = field(default_factory=list)
    branches: list[list[str]] = field(default_factory=list)
    side: list[str] = field(default_factory=list)
    superseded: dict[str, str] = field(default_factory=dict)
    """Reply that came to nothing -> the retry that took its place."""
    failed: set[str] = field(default_factory=set)
    compacted: set[str] = field(default_factory=set)
    """First calls after compaction."""


@dataclass
class Agent:
    """One line of work, in the harness's memory."""

    name: str
    tools: list[dict[str, Any]] | None
    system: str
    thread: str | None
    messages: list[Message]
    now: float
    tokens: list[int] = field(default_factory=list)
    """Of the whole conversation up to and with the last reply."""
    heard: int = 0
    """Messages that ``tokens`` stand for."""


class Play:
    """Plays a rollout; ``draw`` decides."""

    def __init__(self, draw: Callable[[Any], Any], *, tokens: bool, labels: bool) -> None:
        self.draw, self.with_tokens, self.labels = draw, tokens, labels
        self.spans: list[LineageSpan] = []
        self.truth = Truth()
        self.counter = 0

    def unique(self, word: str) -> str:
        self.counter += 1
        return f"{word} number {self.counter} of this rollout"

    def agent(self, name: str, tools: list[dict[str, Any]] | None, task: str, now: float) -> Agent:
        system = f"You are the {name.split()[0]} agent."
        thread = name if self.labels and name != "main" else None
        messages = [{"role": "system", "content": system}, {"role": "user", "content": task}]
        return Agent(name, tools, system, thread, messages, now)

    def turn(self, agent: Agent, line: list[str], *calls: tuple[str, dict[str, Any]]) -> Message:
        """One turn: perhaps tries that fail or are lost, then the reply that the agent hears."""
        lost: list[str] = []
        for _ in range(self.draw(st.integers(0, 2)) if self.draw(st.booleans()) else 0):
            kind = self.draw(st.sampled_from(["error", "aborted", "lost", "overlaps"]))
            if kind in ("error", "aborted"):
                status = SpanStatus.UPSTREAM_ERROR if kind == "error" else SpanStatus.ABORTED
                self.truth.failed.add(self.call(agent, None, status).id)
                continue
            span = self.call(agent, self.reply(calls))
            lost.append(span.id)
            if kind == "overlaps":  # the client gave it up; it ends only after the retry has begun
                agent.now = span.started_at + 2.0
        said = self.reply(calls)
        span = self.call(agent, said)
        self.truth.superseded |= dict.fromkeys(lost, span.id)
        line.append(span.id)
        agent.messages.append(said)
        if self.with_tokens:
            assert span.prompt is not None and span.completion is not None
            agent.tokens = [*span.prompt.tolist(), *span.completion.tolist()]
            agent.heard = len(agent.messages)
        return said

    def reply(self, calls: tuple[tuple[str, dict[str, Any]], ...]) -> Message:
        message: Message = {"role": "assistant", "content": self.unique("words")}
        if calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{self.counter}_{number}",
                    "type": "function",
                    "function": {"name": name, "arguments": json.dumps(arguments)},
                }
                for number, (name, arguments) in enumerate(calls)
            ]
        return message

    def call(self, agent: Agent, said: Message | None, status: str = SpanStatus.OK) -> LineageSpan:
        """Records a call of the agent with its history as it is; its clock goes on."""
        started_at = agent.now
        agent.now += self.draw(st.sampled_from([3.0, 5.0, 20.0]))
        request = {"messages": agent.messages, "tools": agent.tools}
        hashes = context_hashes(BARE, agent.messages)
        items = tuple(read_items(agent.messages))
        tools = canonical_tools(agent.tools)
        prompt = completion = None
        if self.with_tokens:
            fresh = [number for message in agent.messages[agent.heard :] for number in self.encode(message)]
            start = agent.tokens or list(self.encode({"role": "system", "content": repr(tools)}))
            prompt = np.array([*start, *fresh], np.int32)
            completion = None if said is None else np.array([*self.encode(said), 7], np.int32)
        span = LineageSpan(
            id=f"{self.draw(st.integers(0, 2))}-{len(self.spans):03d}",  # by the process that recorded it
            started_at=started_at,
            ended_at=agent.now - 0.5,
            status=status,
            delivery=Delivery.ABORTED if status == SpanStatus.ABORTED else Delivery.SAMPLED,
            thread=agent.thread,
            prompt=prompt,
            completion=completion,
            items=items,
            hashes=tuple(hashes),
            key=context_key(request, policy_id="p"),
            tools=digest(tools) if tools else None,
            system=read_system(items),
            said=read_said(said) if said else None,
            context=extend_hash(hashes[-1], said) if said else None,
            reply=read_echo(said) if said else None,
            asked=tuple(argument_texts(said)) if said else (),
        )
        self.spans.append(span)
        return span

    @staticmethod
    def encode(message: Message) -> list[int]:
        plain = canonical_message(message)
        return [1, *np.frombuffer(digest(plain), np.uint16).astype(np.int32).tolist()]


@st.composite
def rollouts(draw: st.DrawFn) -> tuple[list[LineageSpan], Truth]:
    """An agent at work. Its parts come in any number and order; half of the rollouts have tokens, half have labels."""
    play = Play(draw, tokens=draw(st.booleans()), labels=draw(st.booleans()))
    truth = play.truth
    main = play.agent("main", MAIN_TOOLS, play.unique("task"), 100.0)
    if draw(st.booleans()):
        side_call(play, main.now + draw(st.sampled_from([-0.5, 0.5])), "title")
    work(play, main)
    for _ in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from(["tool", "tool", "sub", "subs", "compact", "side", "left"]))
        if kind in ("sub", "subs"):
            delegate(play, main, 2 if kind == "subs" else 1)
        elif kind == "compact":
            compact(play, main)
        elif kind == "left":
            leave(play, main)
        else:
            work(play, main)
        if kind == "side":
            side_call(play, main.now - 0.25, "commit")
    play.turn(main, truth.main)
    return play.spans, truth


def work(play: Play, main: Agent) -> None:
    said = play.turn(main, play.truth.main, ("bash", {"command": play.unique("run")}))
    answer(play, main, said, [play.unique("output")])


def answer(play: Play, agent: Agent, said: Message, results: list[str]) -> None:
    for call, result in zip(said["tool_calls"], results, strict=True):
        agent.messages.append({"role": "tool", "tool_call_id": call["id"], "content": result})
    agent.now += 1.0


def delegate(play: Play, main: Agent, count: int) -> None:
    """Sub-agents, at once; what each reports is the result of the main agent's call."""
    tasks = [play.unique("subtask") for _ in range(count)]
    said = play.turn(main, play.truth.main, *(("task", {"prompt": task}) for task in tasks))
    reports, ends = [], []
    for number, task in enumerate(tasks):
        sub = play.agent(f"sub {play.counter}", SUB_TOOLS, task, main.now + 0.1 * number)
        line: list[str] = []
        for _ in range(play.draw(st.integers(0, 2))):
            worked = play.turn(sub, line, ("read", {"path": play.unique("file")}))
            answer(play, sub, worked, [play.unique("content")])
        reports.append(play.turn(sub, line)["content"])
        play.truth.branches.append(line)
        ends.append(sub.now)
    main.now = max(ends)
    answer(play, main, said, [f"The agent reports: {report}" for report in reports])


def side_call(play: Play, now: float, kind: str) -> None:
    """A title or a commit message: other prompt, no tools; nobody hears of what it says."""
    side = play.agent(kind, None, play.unique(f"name this {kind}"), now)
    side.thread = None
    play.turn(side, play.truth.side)


def compact(play: Play, main: Agent) -> None:
    """The agent asks for a summary, on its own history or under another prompt, and goes on from that."""
    if play.draw(st.booleans()):
        main.messages.append({"role": "user", "content": play.unique("summarise")})
        summary = play.turn(main, play.truth.main)["content"]
    else:
        other = play.agent("summary", None, play.unique("summarise"), main.now)
        other.thread = None
        summary = play.turn(other, play.truth.main)["content"]
        main.now = other.now
    main.messages = [main.messages[0], {"role": "user", "content": f"So far: {summary}\nGo on."}]
    main.tokens, main.heard, main.now = [], 0, main.now + 1.0
    work(play, main)
    play.truth.compacted.add(play.truth.main[-1])


def leave(play: Play, main: Agent) -> None:
    """A path that is left: the agent works on, then goes back to where it was and does something else."""
    kept, tokens, heard = list(main.messages), list(main.tokens), main.heard
    main.messages.append({"role": "user", "content": play.unique("try this")})
    line: list[str] = []
    said = play.turn(main, line, ("bash", {"command": play.unique("run")}))
    answer(play, main, said, [play.unique("output")])
    play.turn(main, line)
    play.truth.branches.append(line)
    main.messages, main.tokens, main.heard = kept, tokens, heard
    main.now += 1.0
    main.messages.append({"role": "user", "content": play.unique("try that")})


__all__ = ["Play", "Role", "Truth", "rollouts"]
