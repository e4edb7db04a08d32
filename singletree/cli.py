"""The one command. Each subcommand lives in ``singletree/commands`` and is imported only when it is called, so that
``singletree serve`` never pays for torch and ``singletree --help`` answers at once."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import typer
from typer.core import TyperGroup

COMMANDS = {
    "serve": "Run the proxy and its control plane.",
    "train": "Run the trainer on a recipe.",
    "run": "Run a harness on tasks and reward its rollouts.",
    "policy": "Create a policy at the proxy, or change its settings.",
    "demo": "The whole loop on this machine: a small model gets better at a task.",
    "engine": "Install, start and check vLLM.",
    "db": "Create, upgrade and check the span log's schema.",
    "inspect": "Look at rollouts, spans and steps.",
}
"""Subcommand -> help line; the module is ``singletree.commands.<name>``."""


OWN_PACKAGES = frozenset({"singletree", "proxy", "trainer", "spanlog", "harness_adapters"})


class LazyGroup(TyperGroup):
    """A group that imports a subcommand's module when it is asked for.

    Contexts and commands are untyped here: they are classes of click that typer carries under a private name."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"singletree.commands.{cmd_name}")
        command = typer.main.get_command(module.app)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


app = typer.Typer(
    cls=LazyGroup,
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,  # a fault of ours goes to logs and containers, where boxes are noise
)


@app.callback()
def root() -> None:
    """Train the model inside the unmodified harness."""


def main() -> None:
    """Entry point. A user's mistake ends in one line on stderr and a proper exit code, never in a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] in OWN_PACKAGES:
            raise
        print(
            f"error: {error.name} is not installed; this command needs more of Singletree's extras: "
            "pip install 'singletree[cpu,harnesses,postgres]', or make .venv/.installed",
            file=sys.stderr,
        )
        sys.exit(2)
    except Exception as error:
        exit_code = getattr(error, "exit_code", None)
        if not isinstance(exit_code, int):
            raise
        print(f"error: {error}", file=sys.stderr)
        sys.exit(exit_code)
