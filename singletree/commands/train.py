"""``singletree train``: run a recipe."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False)


@app.command()
def train(
    recipe: Annotated[Path, typer.Argument(help="A YAML recipe; see docs/recipe.md.")],
    resume: Annotated[
        bool, typer.Option(help="Go on from the last checkpoint; start if there is none.")
    ] = False,
) -> None:
    """Run the trainer on a recipe until its stages are done."""
    from spanlog.database import open_database
    from trainer.allocator import tune_allocator
    from trainer.config import load_recipe

    settings = load_recipe(recipe)
    tune_allocator(settings.model.device)
    from trainer.daemon import Trainer

    database = open_database(settings.database, migrate=False)
    try:
        trainer = Trainer(settings, database, resume=resume)
        signal.signal(signal.SIGTERM, trainer.stop)
        signal.signal(signal.SIGINT, trainer.stop)
        trainer.run()
    finally:
        database.close()
