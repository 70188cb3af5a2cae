"""Mutants: small faults in the modules that keep rmqd's promises, one at a time. The tests should detect each.

`mutants_harmless.toml` next to this module lists mutants without a noticeable effect, with the reason. An entry names
a mutant by its line before and after the change, so that it stays valid while other lines change. An entry that
matches no mutant is reported.
"""

from __future__ import annotations

import subprocess
import sys
import time
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.nightly.campaigns.mutant_fates import Fates
from tests.nightly.campaigns.mutant_rooms import ROOMS
from tests.nightly.campaigns.mutations import ROOT, Mutant

HARMLESS = Path(__file__).with_name("mutants_harmless.toml")
WANTED_PERCENT = 90.0


class MutantsError(Exception):
    """The campaign cannot be completed."""


@dataclass(frozen=True, slots=True)
class MutantsResult:
    """The results for the mutants of a room."""

    room: str
    seconds: float
    statuses: Counter[str]
    harmless: int
    survivors: tuple[str, ...]
    stale: tuple[str, ...]  # entries of mutants_harmless.toml that match no mutant

    @property
    def counted(self) -> int:
        """The number of mutants that are not listed as harmless."""
        return sum(self.statuses.values())

    @property
    def percent(self) -> float:
        """The percentage of detected mutants."""
        return 100.0 * (self.statuses["killed"] + self.statuses["hung"]) / max(1, self.counted)

    @property
    def passed(self) -> bool:
        """Whether enough mutants were detected, and no entry is stale."""
        return self.percent >= WANTED_PERCENT and not self.stale

    def report(self) -> str:
        lines = [f"{self.room}: {self.percent:.1f} % of {self.counted} mutants noticed; {self.harmless} are harmless"]
        lines += [f"survived: {survivor}" for survivor in self.survivors]
        lines += [f"{HARMLESS.name} has what fits no mutant: {entry}" for entry in self.stale]
        return "\n".join(lines)

    def cells(self) -> list[object]:
        """The row of docs/proof/campaigns.md, without date and commit."""
        return [
            self.room, self.counted + self.harmless, self.statuses["killed"], self.statuses["hung"], self.harmless,
            len(self.survivors), f"{self.percent:.1f} %", round(self.seconds),
        ]  # fmt: skip


def harmless() -> dict[str, str]:
    """Return the reason for each listed mutant by its key. Raises MutantsError for a duplicate."""
    found: dict[str, str] = {}
    for entry in tomllib.loads(HARMLESS.read_text())["harmless"]:
        path, _, where = entry["where"].partition(": ")
        for after in entry["becomes"]:
            nth = f" ({entry['nth']})" if entry.get("nth", 1) > 1 else ""
            key = f"rmqd/consumer/{path}: {where}: {entry['code']} -> {after}{nth}"
            if key in found:
                raise MutantsError(f"{HARMLESS.name} has twice: {key}")
            found[key] = entry["why"]
    return found


def run(room: str, directory: Path, every: int) -> MutantsResult:
    """Judge every n-th mutant of a room without a result in the directory. Raises MutantsError."""
    began = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "tests.nightly.campaigns.mutant_runs", room, str(directory), str(every)]
    if ended := subprocess.run(command, cwd=ROOT, check=False).returncode:
        raise MutantsError(f"{' '.join(command)} ended with {ended}")
    return verdict(room, Fates(directory, room), ROOMS[room].mutants(), harmless(), time.monotonic() - began, every)


def verdict(
    room: str, fates: Fates, mutants: list[Mutant], reasons: dict[str, str], seconds: float, every: int = 1
) -> MutantsResult:
    """Count the results of every n-th mutant."""
    listed = {mutant.key for mutant in mutants if mutant.key in reasons}
    statuses: Counter[str] = Counter()
    survivors, is_harmless = [], 0
    for mutant in mutants[::every]:
        if mutant.key in listed:
            is_harmless += 1
        else:
            entry = fates.of(mutant)
            statuses[entry["status"]] += 1
            if entry["status"] not in ("killed", "hung"):
                survivors.append(f"{mutant.key} (line {mutant.lines.start}, {entry['tests']} tests)")
    paths = {mutant.path for mutant in mutants}
    stale = tuple(key for key in reasons if key.partition(": ")[0] in paths and key not in listed)
    return MutantsResult(room, seconds, statuses, is_harmless, tuple(survivors), stale)
