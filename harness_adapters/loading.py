"""Finds the user's own objects by ``package.module:name``."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from harness_adapters.errors import ConfigError


def load_object(spec: str, *, what: str) -> Any:
    """Import ``module:name``; the current folder is searched too, as ``python`` does for a script.

    Raises ``ConfigError`` naming ``what`` if the form is wrong or the module or the name is not there. An error
    inside the user's module is reported with its own message.
    """
    module_name, colon, name = spec.partition(":")
    if not colon or not module_name or not name:
        raise ConfigError(f"{what} {spec!r} must look like package.module:name")
    here = str(Path.cwd())
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{what} {spec!r}: no module named {error.name!r}; run from the folder that holds it, or install it"
        ) from error
    except Exception as error:
        raise ConfigError(f"{what} {spec!r}: importing it raised {type(error).__name__}: {error}") from error
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise ConfigError(f"{what} {spec!r}: module {module_name!r} has no {name!r}") from None
    return found
