"""Ids that sort by time, so that "oldest first" needs no further column.

``<prefix>_<26 characters>``: 11 characters of microseconds since 1970 and 15 of randomness (75 bits), in Crockford's
base 32, lower case (https://www.crockford.com/base32.html). Lower case letters and digits alone sort alike under
every collation. Within a process ids of one moment still increase.
"""

from __future__ import annotations

import itertools
import os
import random
import secrets
import threading
import time

ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
THREES = ["".join(three) for three in itertools.product(ALPHABET, repeat=3)]
"""Three characters at a time: ids are made on each call."""
PREFIXES = frozenset({"tsk", "grp", "rol", "spn", "rwd", "stp", "smp", "eng", "swp"})
"""task, group, rollout, span, reward, train step, train sample, engine, engine swap."""

TIME_CHARACTERS = 11
RANDOM_CHARACTERS = 15
RANDOM_LIMIT = 32**RANDOM_CHARACTERS

_lock = threading.Lock()
_last = (-1, 0)
_random = random.Random(secrets.randbits(256))
"""Ids need to differ, not to be secret, and asking the system for each costs more than the rest."""
os.register_at_fork(after_in_child=lambda: _random.seed(secrets.randbits(256)))


def encode(number: int, width: int) -> str:
    """``number`` in base 32, most significant character first, padded to ``width``."""
    characters = []
    for _ in range(width // 3):
        characters.append(THREES[number & 0x7FFF])
        number >>= 15
    for _ in range(width % 3):
        characters.append(ALPHABET[number & 31])
        number >>= 5
    return "".join(reversed(characters))


def new_id(prefix: str, at: float | None = None) -> str:
    """A fresh id. ``at``: Unix seconds that it should sort by, default now. Raises ValueError for an unknown prefix."""
    if prefix not in PREFIXES:
        raise ValueError(f"unknown id prefix {prefix!r}")
    if at is not None:
        return f"{prefix}_{encode(int(at * 1e6), TIME_CHARACTERS)}{encode(_random.getrandbits(75), RANDOM_CHARACTERS)}"
    global _last
    with _lock:
        moment = time.time_ns() // 1000
        tail = _random.getrandbits(75)
        if moment <= _last[0]:
            moment, tail = _last[0], _last[1] + 1 + _random.getrandbits(32)
            if tail >= RANDOM_LIMIT:
                moment, tail = moment + 1, _random.getrandbits(74)
        _last = (moment, tail)
    return f"{prefix}_{encode(moment, TIME_CHARACTERS)}{encode(tail, RANDOM_CHARACTERS)}"
