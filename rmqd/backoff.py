"""How long to wait before asking again what did not answer, or refused."""

from __future__ import annotations

import random
from typing import Final

RANDOM: Final = random.Random()  # of its own: the shared one belongs to the program, which may have seeded it
_MOST_DOUBLINGS: Final = 10


def doubled(first_seconds: float, times: int, most_seconds: float) -> float:
    """The pause after so many failures in a row: twice as long from one to the next, up to `most_seconds`."""
    return min(first_seconds * float(1 << min(times - 1, _MOST_DOUBLINGS)), most_seconds)


def spread(seconds: float, least: float = 0.75, most: float = 1.25) -> float:
    """A random part of a pause, so that those who wait for the same broker do not all ask it at once."""
    return seconds * RANDOM.uniform(least, most)
