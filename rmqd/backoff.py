"""Delays between attempts of a request that failed or was refused."""

from __future__ import annotations

import random
from typing import Final

RANDOM: Final = random.Random()  # a separate generator, because the program may have seeded the shared one
_MOST_DOUBLINGS: Final = 10


def doubled(first_seconds: float, times: int, most_seconds: float) -> float:
    """Return the delay after this many failures in a row. It doubles with each failure, up to `most_seconds`."""
    return min(first_seconds * float(1 << min(times - 1, _MOST_DOUBLINGS)), most_seconds)


def spread(seconds: float, least: float = 0.75, most: float = 1.25) -> float:
    """Return the delay with random jitter, so that clients of one broker do not all retry at once."""
    return seconds * RANDOM.uniform(least, most)
