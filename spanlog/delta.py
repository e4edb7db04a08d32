"""Delta storage [I5]: a span keeps only what its parent has not. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from spanlog.arrays import Ints


@dataclass(frozen=True)
class Digests:
    """A JSON document's parts, by which equal ones are found."""

    fields: Mapping[str, bytes | tuple[bytes, ...]] = field(default_factory=dict)
    """Of each field but the history; of a list, one for each item."""
    items: tuple[bytes, ...] = ()
    """Of the history's items."""


NOTHING = Digests()


@dataclass(frozen=True)
class Parent:
    """A committed span, as far as another one is stored as a change of it."""

    id: str
    rollout_id: str
    tokens: Ints | None
    """int32 [prompt + completion]; null: the engine gave none."""
    request: Digests = NOTHING
    hub: Digests = NOTHING

    @property
    def request_items(self) -> tuple[bytes, ...]:
        return self.request.items

    @property
    def hub_items(self) -> tuple[bytes, ...]:
        return self.hub.items


def shared_length(before: Ints, after: NDArray[np.integer]) -> int:
    """Length of the longest common prefix of two token arrays."""
    length = min(before.size, after.size)
    different = np.flatnonzero(before[:length] != after[:length])
    return int(different[0]) if different.size else length
