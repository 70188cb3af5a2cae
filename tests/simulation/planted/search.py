"""Looks for planted bugs: each in the histories of seed after seed, until one shows it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median
from typing import Final

import pytest

from tests.simulation.plan import draw
from tests.simulation.planted.registry import PLANTED
from tests.simulation.run import Crashed, simulate

MOST_TEXT: Final = 90


@dataclass(frozen=True, slots=True)
class Search:
    """How one bug was found, or not."""

    bug: str
    seed: int | None
    """Of the history that showed it; None where none did."""
    wrong: str
    """What was wrong first."""
    histories: int
    seconds: float

    def row(self) -> list[object]:
        """A row of the table."""
        return [self.bug, "not found" if self.seed is None else self.seed, self.wrong, self.histories, self.seconds]


def search(bug: str, first_seed: int, most_histories: int) -> Search:
    """Run histories with this bug, from a seed on, until something is wrong."""
    begin = time.monotonic()
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[bug](patch)
        for seed in range(first_seed, first_seed + most_histories):
            wrong = _first_wrong(seed)
            if wrong is not None:
                return Search(bug, seed, wrong, seed - first_seed + 1, time.monotonic() - begin)
    return Search(bug, None, "", most_histories, time.monotonic() - begin)


def _first_wrong(seed: int) -> str | None:
    try:
        wrong = simulate(draw(seed)).wrong
    except Crashed as crash:
        return f"crashed: {crash.__cause__!r}"
    return str(wrong[0]) if wrong else None


def told(one: Search) -> str:
    """A line about one search."""
    where = "NOT FOUND" if one.seed is None else f"seed {one.seed}"
    wrong = one.wrong if len(one.wrong) <= MOST_TEXT else one.wrong[: MOST_TEXT - 1] + "…"
    return f"{one.bug:<46} {where:<10} {one.histories:>4} histories {one.seconds:>7.1f} s  {wrong}"


def summary(searches: list[Search]) -> str:
    """How many were found, and how long it took."""
    found = [one for one in searches if one.seed is not None]
    if not found:
        return f"found 0 of {len(searches)}"
    seconds, histories = [one.seconds for one in found], [one.histories for one in found]
    return (
        f"found {len(found)} of {len(searches)}; median {median(histories):g} histories and {median(seconds):.1f} s, "
        f"longest {max(histories)} histories and {max(seconds):.1f} s"
    )
