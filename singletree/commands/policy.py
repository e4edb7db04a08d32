"""``singletree policy``: create a policy at the proxy, or change its settings."""

from __future__ import annotations

from typing import Annotated

import typer

from singletree.commands.options import AdminKeyOption, KeysFileOption

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def policy(
    name: Annotated[str, typer.Argument(help="The policy's id; engines, runs and recipes name it.")],
    model: Annotated[
        str | None, typer.Option(help="The model's name on its engines; default: the policy's own.")
    ] = None,
    frozen: Annotated[
        bool, typer.Option("--frozen", help="Never trained: a teacher, a judge. Requests pass as they are.")
    ] = False,
    group_size: Annotated[int, typer.Option(min=1, help="Rollouts per task.")] = 8,
    rollouts_per_step: Annotated[
        int,
        typer.Option(
            min=0, help="What one optimiser step consumes; runners wait for the trainer beyond it. 0: never."
        ),
    ] = 0,
    max_staleness: Annotated[
        int, typer.Option(min=0, help="Steps that rollouts may run ahead of the trainer.")
    ] = 0,
    proxy: Annotated[str, typer.Option(help="The proxy's URL.")] = "http://127.0.0.1:8700",
    key: AdminKeyOption = None,
    keys_file: KeysFileOption = None,
) -> None:
    """Create the policy NAME, or bring it to these settings. Its kind never changes."""
    from singletree.admin import find_admin_key, put

    body = {
        "kind": "frozen" if frozen else "train",
        "model": model or name,
        "group_size": group_size,
        "rollouts_per_step": rollouts_per_step,
        "max_staleness": max_staleness,
    }
    made = put(proxy, f"/api/policies/{name}", body, find_admin_key(key, keys_file))
    typer.echo(f"policy {name}: {made['kind']}, model {made['model']}, version {made['version']}")
