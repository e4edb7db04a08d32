"""``singletree inspect``: what the span log holds, as tables in the terminal. Reads only; safe beside running programs.

Everything shown is text from outside (harnesses, models): it is printed as it is, never as markup.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from singletree.commands.options import DEFAULT_URL, DatabaseOption

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from spanlog.records import SpanRecord

app = typer.Typer(
    help="Look at rollouts, spans and steps.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
)

PolicyOption = Annotated[str | None, typer.Option(help="Only this policy's.")]
LimitOption = Annotated[int, typer.Option(min=1, help="At most so many rows, the newest.")]


@contextmanager
def reading(database: str) -> Iterator[Connection]:
    """A read transaction on a database of the right revision."""
    from spanlog.database import open_database

    log = open_database(database, migrate=False)
    try:
        with log.read() as conn:
            yield conn
    finally:
        log.close()


def show(title: str, columns: list[str], rows: list[list[Any]]) -> None:
    """Print a table; control characters are dropped, so that a transcript cannot drive the terminal."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(printable("" if value is None else str(value))) for value in row))
    Console().print(table)


def printable(text: str) -> str:
    """The text without control characters, line breaks kept."""
    return "".join(character for character in text if character.isprintable() or character == "\n")


def moment(at: float | None) -> str | None:
    """Unix seconds as UTC."""
    return None if at is None else datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def number(value: float | None) -> str | None:
    """A number to four significant digits."""
    return None if value is None else f"{value:.4g}"


@app.command()
def rollouts(
    database: DatabaseOption = DEFAULT_URL,
    policy: PolicyOption = None,
    purpose: Annotated[str | None, typer.Option(help="train or eval.")] = None,
    limit: LimitOption = 20,
) -> None:
    """The newest rollouts with their rewards."""
    from sqlalchemy import func, select

    from spanlog.models import Group, Rollout, Span

    calls = select(func.count(Span.id)).where(Span.rollout_id == Rollout.id).scalar_subquery()
    query = (
        select(Rollout.__table__, Group.state.label("group_state"), calls.label("calls"))
        .join(Group, Group.id == Rollout.group_id)
        .order_by(Rollout.created_at.desc(), Rollout.group_id, Rollout.index)
        .limit(limit)
    )
    for column, value in ((Rollout.policy_id, policy), (Rollout.purpose, purpose)):
        if value is not None:
            query = query.where(column == value)
    with reading(database) as conn:
        rows = conn.execute(query).all()
    columns = [
        "rollout",
        "policy",
        "purpose",
        "state",
        "reward",
        "reward state",
        "group",
        "calls",
        "harness",
        "started",
    ]
    show(
        f"{len(rows)} rollouts",
        columns,
        [
            [row.id, row.policy_id, row.purpose, row.state, number(row.reward), row.reward_state, row.group_state,
             row.calls, row.harness, moment(row.started_at)]
            for row in rows
        ],
    )  # fmt: skip


@app.command()
def rollout(
    rollout_id: Annotated[str, typer.Argument(metavar="ID")], database: DatabaseOption = DEFAULT_URL
) -> None:
    """One rollout: its task, its model calls, its rewards."""
    from sqlalchemy import select

    from spanlog import records, rewards
    from spanlog import rollouts as rollout_rows
    from spanlog.models import Group, Task

    with reading(database) as conn:
        row = rollout_rows.get(conn, rollout_id)
        task = select(Task.payload).join(Group, Group.task_id == Task.id).where(Group.id == row.group_id)
        payload = conn.execute(task).scalar_one()
        spans = records.read_spans(conn, [rollout_id]).get(rollout_id, [])
        events = rewards.list_for_rollout(conn, rollout_id)
    facts = [
        [name, getattr(row, name)]
        for name in ("state", "harness", "runner", "reward", "reward_state", "error")
    ]
    facts += [
        ["task", json.dumps(payload, ensure_ascii=False)],
        ["info", json.dumps(row.info, ensure_ascii=False)],
    ]
    show(f"rollout {rollout_id}", ["", ""], facts)
    show(f"{len(spans)} model calls", CALL_COLUMNS, [call_row(span) for span in spans])
    columns = ["name", "value", "source", "span", "recorded only", "at"]
    values = [
        [e.name, number(e.value), e.source, e.span_id, e.after_consumption, moment(e.created_at)]
        for e in events
    ]
    show(f"{len(events)} rewards", columns, values)


CALL_COLUMNS = ["call", "tokens", "version", "end", "trainable", "reply"]


def call_row(span: SpanRecord) -> list[Any]:
    """One model call as a row of the table."""
    prompt, completion = (
        0 if tokens is None else len(tokens) for tokens in (span.prompt_tokens, span.completion_tokens)
    )
    version = None
    if span.version_low is not None and span.version_high is not None and span.version_low.size:
        low, high = int(span.version_low.min()), int(span.version_high.max())
        version = str(low) if low == high else f"{low}-{high}"
    message = (span.reply or {}).get("message") or {}
    said = message.get("content") or ""
    called = "".join(f"\n{json.dumps(call.get('function'))}" for call in message.get("tool_calls") or [])
    trainable = "yes" if span.trainable else span.untrainable_reason
    return [
        span.id,
        f"{prompt}+{completion}",
        version,
        span.finish_reason or span.status,
        trainable,
        f"{said}{called}",
    ]


@app.command()
def steps(
    database: DatabaseOption = DEFAULT_URL, policy: PolicyOption = None, limit: LimitOption = 20
) -> None:
    """The newest train steps; those that a restart went back before are void."""
    from sqlalchemy import select

    from spanlog.models import TrainStep

    query = select(TrainStep.__table__).order_by(TrainStep.committed_at.desc()).limit(limit)
    if policy is not None:
        query = query.where(TrainStep.policy_id == policy)
    with reading(database) as conn:
        rows = conn.execute(query).all()[::-1]
    show(
        f"{len(rows)} train steps",
        ["policy", "step", "stage", "version", "void", "seconds", "committed", "metrics"],
        [
            [row.policy_id, row.number, row.stage, row.version, "void" if row.void else "",
             number(row.committed_at - row.started_at), moment(row.committed_at),
             "  ".join(f"{name} {number(value)}" for name, value in sorted(row.metrics.items()))]
            for row in rows
        ],
    )  # fmt: skip
