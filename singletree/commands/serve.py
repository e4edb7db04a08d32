"""``singletree serve``: the proxy and its control plane in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.callback(invoke_without_command=True)
def serve(
    host: Annotated[
        str | None, typer.Option(help="Address to listen on; beyond loopback keys are required.")
    ] = None,
    port: Annotated[int | None, typer.Option(help="Port; 0 takes a free one.")] = None,
    database: Annotated[
        str | None,
        typer.Option(help="sqlite:///path or postgresql://user@host/name (default: singletree.db)."),
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(help="Where generated keys are kept (default: keys.json beside the database)."),
    ] = None,
    durability: Annotated[
        str | None, typer.Option(help="full, or async: answered calls may be lost in a power cut.")
    ] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Run the proxy and its control plane. Options win over SINGLETREE_… variables."""
    from pydantic import ValidationError

    from proxy.errors import ProxyError
    from proxy.server import run_server
    from proxy.settings import Settings

    given: dict[str, Any] = {
        "host": host,
        "port": port,
        "database_url": database,
        "keys_file": keys_file,
        "durability": durability,
    }
    try:
        settings = Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        first = error.errors()[0]
        raise ProxyError(f"SINGLETREE_{str(first['loc'][0]).upper()}: {first['msg']}") from None
    run_server(settings, log_level)
