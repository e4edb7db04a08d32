"""Checks that a harness is installed at the version that its adapter was proved with.

Harnesses change what they put on the wire between releases; an unproved version is refused by name before any rollout
rather than noticed afterwards in the data.
"""

from __future__ import annotations

from importlib import metadata

from harness_adapters.errors import HarnessMissing

REMEDY = "pip install 'singletree[harnesses]'"


def require(distribution: str, proved: str, *, any_version: bool = False) -> str:
    """Return the installed version of ``distribution``.

    Raises ``HarnessMissing`` if it is absent, or at another version than ``proved`` without ``any_version``.
    """
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        raise HarnessMissing(f"{distribution} is not installed; run: {REMEDY}") from None
    if version != proved and not any_version:
        raise HarnessMissing(
            f"{distribution} {version} is installed, but its adapter was proved with {proved}; run: {REMEDY} "
            "(or set harness.any_version: true to go on at your own risk)"
        )
    return version
