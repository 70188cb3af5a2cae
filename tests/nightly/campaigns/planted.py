"""The campaign of planted bugs: search for each in the histories of seed after seed, and record the time."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any, Final

from tests.nightly.campaigns.record import PAGE as CAMPAIGNS
from tests.nightly.campaigns.simulation import PROCESSES, figures_of
from tests.nightly.simulation.planted import PLANTED
from tests.nightly.simulation.planted.search import Search

PAGE: Final = CAMPAIGNS.parent / "planted-bugs.md"
HANGS_SECONDS: Final = 3600.0
"""Limit of one search. A bug that makes a member loop forever produces no history."""
MAX_TEXT: Final = 80


@dataclass(frozen=True, slots=True)
class Searches:
    """The results of the searches for all bugs."""

    seed: int
    count: int
    """The most histories of one search."""
    searches: tuple[Search, ...]

    @property
    def found(self) -> list[Search]:
        """Return the searches that found their bug."""
        return [one for one in self.searches if one.seed is not None]

    @property
    def missed(self) -> list[str]:
        """Return the names of the bugs that no history showed."""
        return [one.bug for one in self.searches if one.seed is None]

    def report(self) -> str:
        """Return the text that the campaign prints."""
        lines = [f"{len(self.searches)} bugs searched from seed {self.seed}, {len(self.found)} found"]
        return "\n".join([*lines, *(f"    not found in {self.count} histories: {bug}" for bug in self.missed)])

    def cells(self) -> list[Any]:
        """Return the row of docs/proof/campaigns.md, without date and commit."""
        histories = _middle_and_most([float(one.histories) for one in self.found], "{:g}")
        seconds = _middle_and_most([one.seconds for one in self.found], "{:.1f}")
        ran = sum(one.histories for one in self.searches)
        return [self.seed, self.count, len(self.searches), len(self.found), histories, seconds, ran, len(self.missed)]

    def write(self, page: Path = PAGE) -> None:
        """Write the table of all bugs below the text of the page."""
        head, _, _ = page.read_text().partition("\n| bug |")
        lines = ["", "| bug | effect | seed | histories | seconds | report of the judge |"]
        lines.append("|---|---|---|---|---|---|")
        for one in sorted(self.searches, key=lambda one: one.bug):
            what = " ".join((PLANTED[one.bug].__doc__ or "").split())
            seed = "not found" if one.seed is None else one.seed
            ran = f"{one.histories} of {one.histories + one.passed}" if one.passed else one.histories
            lines.append(
                f"| {one.bug} | {what} | {seed} | {ran} | {one.seconds:.1f} | {one.said(MAX_TEXT).replace('|', '¦')} |"
            )
        page.write_text(head + "\n".join(lines) + "\n")


def _middle_and_most(figures: list[float], form: str) -> str:
    return f"{form}, {form}".format(median(figures), max(figures)) if figures else "none"


def look_for(bug: str, seed: int, count: int) -> Search:
    """Search for a bug in a separate process. Raises SimulationError."""
    try:
        return Search(**figures_of(seed, count, "--planted", bug, most_seconds=HANGS_SECONDS))
    except subprocess.TimeoutExpired:
        return Search(bug, None, "", count, 0, HANGS_SECONDS)


def _go_on(before: Search, seed: int, count: int) -> Search:
    """Search for a bug in later histories than an unsuccessful search."""
    more = look_for(before.bug, seed + before.histories + before.passed, count - before.histories)
    histories, passed = before.histories + more.histories, before.passed + more.passed
    return replace(more, histories=histories, passed=passed, seconds=before.seconds + more.seconds)


def recorded_seeds(page: Path = PAGE) -> dict[str, int]:
    """Return the seeds that showed the bugs in the last recorded run."""
    rows = [line[2:].split(" | ") for line in page.read_text().splitlines() if line.startswith("| ")]
    return {cells[0]: int(cells[2]) for cells in rows if cells[2].isdigit()}


def run(
    seed: int,
    count: int,
    directory: Path,
    bugs: tuple[str, ...] = tuple(PLANTED),
    first_seeds: Mapping[str, int] = MappingProxyType({}),
) -> Searches:
    """Search for the bugs without a result in the directory, one after the other in each of two processes.

    The history of a bug's first seed comes first. It shows the bug at once, unless plans are drawn differently now.
    In the directory of a run with fewer histories, the search continues with the next history.
    """
    directory.mkdir(parents=True, exist_ok=True)

    def one(bug: str) -> Search:
        file = directory / f"{bug}.json"
        before = Search(**json.loads(file.read_text())) if file.exists() else Search(bug, None, "", 0, 0, 0.0)
        if before.seed is not None or before.histories >= count:
            return before
        done = look_for(bug, first_seeds[bug], 1) if bug in first_seeds and not before.histories else before
        if done.seed is None:
            done = _go_on(before, seed, count)
        file.write_text(json.dumps(asdict(done)))
        return done

    with ThreadPoolExecutor(PROCESSES) as pool:
        return Searches(seed, count, tuple(pool.map(one, bugs)))
