"""Prints what ``pyproject.toml`` beside it depends on, with the extras named, as a requirements file: an image layer
that changes only with them."""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parent / "pyproject.toml").read_text())["project"]
wanted = [
    *project["dependencies"],
    *(item for extra in sys.argv[1:] for item in project["optional-dependencies"][extra]),
]
print("\n".join(wanted))
