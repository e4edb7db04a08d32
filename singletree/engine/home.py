"""Where vLLM's own environment lives, and what is in it.

The engine runs with other versions of torch's surroundings than the trainer may want, so it never shares an
environment with Singletree. ``installed`` is the only judge of whether a home is whole.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path

from singletree.engine.errors import EngineNotInstalled

HOME_VARIABLE = "SINGLETREE_ENGINE_HOME"
STAMP = "singletree-engine.json"
"""Written last by the installer: {"flavor", "vllm", "lock"}. A home without it was made by hand, or is half made."""
PARTIAL = "singletree-engine.partial"
"""Written first and removed last: while it is there, the home is half made."""


@dataclass(frozen=True)
class InstalledEngine:
    """A usable vLLM environment."""

    home: Path
    flavor: str
    """``cpu`` or ``gpu``."""
    version: str
    """vLLM's version without a local part, e.g. ``0.32.0``."""

    @property
    def python(self) -> Path:
        return self.home / "bin" / "python"


def engine_home(explicit: Path | None = None) -> Path:
    """The environment's folder: the argument, else $SINGLETREE_ENGINE_HOME, else ``.engine`` in the source checkout,
    else (installed as a package) the user's data folder."""
    if explicit is not None:
        return explicit.expanduser().absolute()
    if configured := os.environ.get(HOME_VARIABLE):
        return Path(configured).expanduser().absolute()
    checkout = Path(__file__).resolve().parents[2]
    if (checkout / "pyproject.toml").is_file():
        return checkout / ".engine"
    data = Path(os.environ.get("XDG_DATA_HOME") or "~/.local/share").expanduser()
    return data / "singletree" / "engine"


def installed(home: Path) -> InstalledEngine:
    """What is installed at ``home``.

    Raises ``EngineNotInstalled`` if nothing usable is there. An environment that somebody else made (an image, a
    shared machine) counts if vLLM's metadata is in it.
    """
    remedy = f"no vLLM in {home}; run `singletree engine install`, or set {HOME_VARIABLE} to the folder that has it"
    if not (home / "bin" / "python").exists() or (home / PARTIAL).exists():
        raise EngineNotInstalled(remedy)
    stamp = home / STAMP
    if stamp.is_file():
        content = json.loads(stamp.read_text())
        return InstalledEngine(home, content["flavor"], content["vllm"])
    found = sorted(home.glob("lib/python3*/site-packages/vllm-*.dist-info"))
    if not found:
        raise EngineNotInstalled(remedy)
    version = found[-1].name.removeprefix("vllm-").removesuffix(".dist-info")
    return InstalledEngine(home, "cpu" if "+cpu" in version else "gpu", version.partition("+")[0])
