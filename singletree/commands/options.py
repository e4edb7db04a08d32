"""Options that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DatabaseOption = Annotated[
    str,
    typer.Option(
        envvar="SINGLETREE_DATABASE_URL", help="sqlite:///path or postgresql://user:password@host/name."
    ),
]
DEFAULT_URL = "sqlite:///singletree.db"
AdminKeyOption = Annotated[str | None, typer.Option("--key", help="Admin key; default $SINGLETREE_KEY.")]
KeysFileOption = Annotated[
    Path | None,
    typer.Option(
        help="The proxy's keys.json; default: the one in this folder.", envvar="SINGLETREE_KEYS_FILE"
    ),
]
