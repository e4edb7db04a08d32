"""Writes the parts of docs/ that the code already says: tables, states, settings, recipes and command help.

A page holds pairs of markers, ``<!-- generated: NAME -->`` and ``<!-- end -->``; what lies between them is replaced,
the prose around them is left alone. ``--check`` writes nothing and fails where a page has drifted from the code, so
that a description cannot outlive what it describes. Sources are read as syntax trees where that is enough: a table
column or a config field is documented by the string under it.

Exit codes: 0 when every page is up to date (or was written), 1 when ``--check`` found drift, 2 for a marker that no
generator knows.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
MARKED = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", flags=re.DOTALL)


@dataclass(frozen=True)
class Field:
    """One annotated assignment in a class body and the string under it."""

    name: str
    annotation: str
    default: str
    text: str


@dataclass(frozen=True)
class Class:
    name: str
    text: str
    bases: tuple[str, ...]
    fields: tuple[Field, ...]
    constants: dict[str, str]
    """Plain assignments, as source text: ``__tablename__`` and the members of an enumeration."""


def string_of(node: ast.stmt | None) -> str:
    """The text of a bare string statement with its line breaks undone, else nothing."""
    if (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    ):
        return " ".join(node.value.value.split())
    return ""


def default_of(node: ast.AnnAssign) -> str:
    """The default as source text; of ``Field(default=x)`` and ``Field(x)`` only ``x``; nothing if there is none."""
    value = node.value
    if isinstance(value, ast.Call) and getattr(value.func, "id", "") == "Field":
        named = {keyword.arg: keyword.value for keyword in value.keywords}
        value = (
            named.get("default") or named.get("default_factory") or (value.args[0] if value.args else None)
        )
        if isinstance(value, ast.Lambda):
            value = value.body
    if value is None or (isinstance(value, ast.Constant) and value.value is Ellipsis):
        return ""
    return ast.unparse(value)


def read_class(node: ast.ClassDef) -> Class:
    """A class with its fields, each joined with the string that follows it."""
    fields, constants = [], {}
    for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name):
            annotation = ast.unparse(statement.annotation)
            fields.append(Field(statement.target.id, annotation, default_of(statement), string_of(following)))
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            constants[statement.targets[0].id] = ast.unparse(statement.value)
    text = " ".join((ast.get_docstring(node) or "").split())
    return Class(node.name, text, tuple(ast.unparse(base) for base in node.bases), tuple(fields), constants)


def read_classes(path: str) -> list[Class]:
    """All top-level classes of a module, in source order; none while it is not there yet."""
    if not (ROOT / path).exists():
        return []
    return [
        read_class(node)
        for node in ast.parse((ROOT / path).read_text()).body
        if isinstance(node, ast.ClassDef)
    ]


def cell(text: str) -> str:
    """Markdown for one table cell: reStructuredText's double backquotes become single, bars are escaped."""
    return text.replace("``", "`").replace("|", "\\|").replace("\n", " ")


def code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""


def table(head: list[str], rows: list[list[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"


def data_model() -> Iterator[str]:
    """One section per table: its columns, their Python types, what they hold."""
    for model in read_classes("spanlog/models.py"):
        if "__tablename__" not in model.constants:
            continue
        yield f"### {ast.literal_eval(model.constants['__tablename__'])}\n\n{cell(model.text)}\n"
        rows = []
        for field in model.fields:
            kind = field.annotation.removeprefix("Mapped[").removesuffix("]")
            key = re.search(r"ForeignKey\('([\w.]+)'", field.default)
            marks = ["primary key"] if "primary_key=True" in field.default else []
            marks += [f"→ {key.group(1)}"] if key else []
            rows.append([code(field.name), code(kind), ", ".join(marks), cell(field.text)])
        yield from table(["column", "type", "key", "what"], rows)
        yield ""


def states() -> Iterator[str]:
    """The enumerations with the remark beside each member."""
    path = "spanlog/states.py"
    lines = (ROOT / path).read_text().splitlines()
    for node in ast.parse((ROOT / path).read_text()).body:
        if not isinstance(node, ast.ClassDef):
            continue
        yield f"- **{node.name}**"
        for line in lines[node.lineno : node.end_lineno]:
            if match := re.match(r"\s+[A-Z_]+ = [\"']([\w-]+)[\"'](?:\s*#\s*(.*))?", line):
                yield f"  - `{match.group(1)}`" + (f": {match.group(2)}" if match.group(2) else "")


def settings() -> Iterator[str]:
    """The proxy's settings, named as in the environment."""
    for model in read_classes("proxy/settings.py"):
        if "BaseSettings" not in model.bases:
            continue
        prefix = re.search(r"env_prefix='(\w*)'", model.constants.get("model_config", ""))
        start = prefix.group(1) if prefix else ""
        rows = [
            [code(start + field.name.upper()), code(field.annotation), code(field.default), cell(field.text)]
            for field in model.fields
            if field.name != "model_config"
        ]
        yield from table(["variable", "type", "default", "what"], rows)


def recipe() -> Iterator[str]:
    """Every block of a recipe."""
    yield from blocks("trainer/config.py")


def run() -> Iterator[str]:
    """Every block of a run's configuration."""
    yield from blocks("harness_adapters/config.py")


def blocks(path: str) -> Iterator[str]:
    """The models of a configuration file: keys, types, defaults and reasons."""
    for model in read_classes(path):
        if not model.fields:
            continue
        yield f"### {model.name}\n\n{cell(model.text)}\n"
        rows = [
            [code(field.name), code(field.annotation), code(field.default) or "required", cell(field.text)]
            for field in model.fields
            if field.name != "model_config"
        ]
        yield from table(["key", "type", "default", "what"], rows)
        yield ""


def help_of(command: Any, name: str, parent: Any) -> Iterator[str]:
    """The help of a command (typer's, which has no public type) and of those below it, 100 columns wide."""
    context = command.context_class(
        command, info_name=name, parent=parent, terminal_width=100, max_content_width=100
    )
    text = "\n".join(line.rstrip() for line in command.get_help(context).splitlines())
    yield f"### {context.command_path}\n\n```text\n{text.strip()}\n```\n"
    for sub in command.list_commands(context) if hasattr(command, "list_commands") else []:
        try:
            below = command.get_command(context, sub)
        except ModuleNotFoundError as error:
            # Only a subcommand that is announced but not there yet: any other missing module is a fault.
            if error.name != f"singletree.commands.{sub}":
                raise
            continue
        if below is not None and not below.hidden:
            yield from help_of(below, sub, context)


def cli() -> Iterator[str]:
    """``--help`` of every command, without boxes and colours, whatever a terminal can show."""
    os.environ["TYPER_USE_RICH"] = "0"
    typer = importlib.import_module("typer.main")
    app = importlib.import_module("singletree.cli").app
    yield from help_of(typer.get_command(app), "singletree", None)


GENERATORS: dict[str, Callable[[], Iterator[str]]] = {
    "data-model": data_model,
    "states": states,
    "settings": settings,
    "recipe": recipe,
    "run": run,
    "cli": cli,
}
"""Marker -> what writes the part between it and its end."""


def render(page: str) -> str:
    """A page with every generated part written anew. Raises KeyError for an unknown marker."""

    def fill(match: re.Match[str]) -> str:
        lines = GENERATORS[match.group(2)]()
        return match.group(1) + "\n" + "\n".join(lines).strip() + "\n\n" + match.group(3)

    return MARKED.sub(fill, page)


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the generated parts of docs/.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a page has drifted")
    check = parser.parse_args().check
    drifted = []
    for path in sorted(DOCS.glob("*.md")):
        page = path.read_text()
        try:
            fresh = render(page)
        except KeyError as unknown:
            print(f"error: docs/{path.name} has a marker that no generator knows: {unknown}", file=sys.stderr)
            return 2
        if fresh != page:
            drifted.append(path.name)
            if not check:
                path.write_text(fresh)
    if drifted and check:
        print(f"error: {', '.join(drifted)} differ from the code; run make docs", file=sys.stderr)
        return 1
    print(f"docs: {'written: ' + ', '.join(drifted) if drifted else 'up to date'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
