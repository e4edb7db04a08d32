"""Group ids made by the caller, so that a creation whose answer was lost can be sent again [I6].

They sort by time, to the millisecond and within it by a counter, as the proxy's own ids do: the trainer takes the
oldest group first, so tasks are trained on in the order in which their source gives them.
"""

from __future__ import annotations

import secrets
import time

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"
"""Crockford's base 32, in ASCII order."""


class GroupIds:
    """Gives ``grp_`` + 26 characters (48 bits of milliseconds, 80 of randomness), each above the one before."""

    def __init__(self) -> None:
        self._last = 0

    def new(self) -> str:
        fresh = (int(time.time() * 1000) << 80) | secrets.randbits(80)
        self._last = max(fresh, self._last + 1)
        return f"grp_{base32(self._last)}"


def base32(number: int) -> str:
    """26 characters for 130 bits, most significant first."""
    return "".join(ALPHABET[(number >> shift) & 31] for shift in range(125, -5, -5))
