"""Search for planted bugs in the histories of seed after seed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

import pytest

from tests.nightly.simulation.planted.registry import NEEDS, PLANTED
from tests.simulation.plan import draw
from tests.simulation.run import Crashed, simulate

MAX_TEXT: Final = 90
MAX_PASSED: Final = 400
"""The most seeds drawn for each history that is run. The kind of history that a bug needs must not be rarer."""


@dataclass(frozen=True, slots=True)
class Search:
    """The result of the search for one bug."""

    bug: str
    seed: int | None
    """The history that showed the bug; None if no history did."""
    wrong: str
    """The judge's first report."""
    histories: int
    passed: int
    """How many seeds were skipped, because the bug cannot show in their kind of history."""
    seconds: float

    def said(self, most: int) -> str:
        """Return the judge's first report, cut to `most` characters."""
        return self.wrong if len(self.wrong) <= most else self.wrong[: most - 1] + "…"


def search(bug: str, first_seed: int, most_histories: int) -> Search:
    """Run histories with this bug, from `first_seed` on, until the judge reports something."""
    begin, histories, passed = time.monotonic(), 0, 0
    needs = NEEDS.get(bug)
    with pytest.MonkeyPatch.context() as patch:
        PLANTED[bug](patch)
        for seed in itertools.count(first_seed):
            if histories >= most_histories or histories + passed >= most_histories * MAX_PASSED:
                break
            if needs is not None and not needs(draw(seed)):
                passed += 1
                continue
            histories += 1
            if (wrong := _first_wrong(seed)) is not None:
                return Search(bug, seed, wrong, histories, passed, time.monotonic() - begin)
    return Search(bug, None, "", histories, passed, time.monotonic() - begin)


def _first_wrong(seed: int) -> str | None:
    try:
        wrong = simulate(draw(seed)).wrong
    except Crashed as crash:
        return f"crashed: {crash.__cause__!r}"
    return str(wrong[0]) if wrong else None


def told(one: Search) -> str:
    """Return the printed line of one search."""
    where = "NOT FOUND" if one.seed is None else f"seed {one.seed}"
    return f"{one.bug:<46} {where:<10} {one.histories:>4} histories {one.seconds:>7.1f} s  {one.said(MAX_TEXT)}"


def summary(searches: Sequence[Search]) -> str:
    """Return the printed summary: how many bugs were found, and how long it took."""
    found = [one for one in searches if one.seed is not None]
    if not found:
        return f"found 0 of {len(searches)}"
    seconds, histories = [one.seconds for one in found], [one.histories for one in found]
    return (
        f"found {len(found)} of {len(searches)}; median {median(histories):g} histories and {median(seconds):.1f} s, "
        f"longest {max(histories)} histories and {max(seconds):.1f} s"
    )
