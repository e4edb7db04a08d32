"""Ids that sort by time, so that "oldest first" needs no further column.

``<prefix>_<26 characters>``: 11 characters of microseconds since 1970 and 15 of randomness (75 bits), in Crockford's
base 32, lower case (https://www.crockford.com/base32.html). Lower case letters and digits alone sort alike under
every collation. Within a process ids of one moment still increase.
"""

from __future__ import annotations

import secrets
import threading
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
PREFIXES = frozenset({"tsk", "grp", "rol", "spn", "rwd", "stp", "smp", "eng", "swp"})
"""task, group, rollout, span, reward, train step, train sample, engine, engine swap."""

TIME_CHARACTERS = 11
RANDOM_CHARACTERS = 15
RANDOM_LIMIT = 32**RANDOM_CHARACTERS

_lock = threading.Lock()
_last = (-1, 0)


def encode(number: int, width: int) -> str:
    """``number`` in base 32, most significant character first, padded to ``width``."""
    characters = []
    for _ in range(width):
        number, digit = divmod(number, 32)
        characters.append(ALPHABET[digit])
    return "".join(reversed(characters))


def new_id(prefix: str, at: float | None = None) -> str:
    """A fresh id. ``at``: Unix seconds that it should sort by, default now. Raises ValueError for an unknown prefix."""
    if prefix not in PREFIXES:
        raise ValueError(f"unknown id prefix {prefix!r}")
    if at is not None:
        return f"{prefix}_{encode(int(at * 1e6), TIME_CHARACTERS)}{encode(secrets.randbits(75), RANDOM_CHARACTERS)}"
    global _last
    with _lock:
        moment = time.time_ns() // 1000
        random = secrets.randbits(75)
        if moment <= _last[0]:
            moment, random = _last[0], _last[1] + 1 + secrets.randbits(32)
            if random >= RANDOM_LIMIT:
                moment, random = moment + 1, secrets.randbits(74)
        _last = (moment, random)
    return f"{prefix}_{encode(moment, TIME_CHARACTERS)}{encode(random, RANDOM_CHARACTERS)}"
