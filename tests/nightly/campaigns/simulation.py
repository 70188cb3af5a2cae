"""Simulation: thousands of seeded histories of groups and brokers on simulated hosts, also with planted bugs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Self

PART: Final = 250
PROCESSES: Final = 2


class SimulationError(Exception):
    """The simulation itself ended without a verdict."""


def figures_of(first: int, count: int, *options: str, most_seconds: float | None = None) -> dict[str, Any]:
    """Run `python -m tests.nightly.simulation --json` for the histories from a seed on, and return its figures.

    Raises SimulationError if there are none, and subprocess.TimeoutExpired.
    """
    command = [
        sys.executable,
        "-m",
        "tests.nightly.simulation",
        "--seed",
        str(first),
        "--count",
        str(count),
        "--json",
        *options,
    ]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False, timeout=most_seconds)
    last = (ended.stdout.splitlines() or [""])[-1]
    if not last.startswith("{"):
        raise SimulationError(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr}")
    figures: dict[str, Any] = json.loads(last)
    return figures


@dataclass(frozen=True, slots=True)
class Part:
    """The results of the histories from one seed on."""

    first: int
    histories: int
    wrong: dict[str, str]
    """The first fault of each failed history, by seed."""
    twice: dict[str, int]
    hours: float
    """Simulated hours."""
    seconds: float

    @classmethod
    def run(cls, first: int, count: int) -> Self:
        """Run the histories in a new process. Raises SimulationError."""
        return cls(**figures_of(first, count))


@dataclass(frozen=True, slots=True)
class Histories:
    """The results of all parts."""

    seed: int
    parts: tuple[Part, ...]

    @property
    def wrong(self) -> dict[str, str]:
        """The first fault of each failed history, by seed."""
        return {seed: what for part in self.parts for seed, what in part.wrong.items()}

    def report(self) -> str:
        ran = sum(part.histories for part in self.parts)
        lines = [f"{ran} histories from seed {self.seed}, {len(self.wrong)} wrong"]
        return "\n".join([*lines, *(f"    seed {seed}: {what}" for seed, what in self.wrong.items())])

    def cells(self) -> list[Any]:
        """The row of docs/proof/campaigns.md, without date and commit."""
        twice = sum((Counter(part.twice) for part in self.parts), Counter[str]())
        causes = "; ".join(f"{count}: {cause}" for cause, count in twice.most_common())
        hours, seconds = sum(part.hours for part in self.parts), sum(part.seconds for part in self.parts)
        wrong = f"{len(self.wrong)} (seeds {', '.join(self.wrong)})" if self.wrong else "0"
        ran = sum(part.histories for part in self.parts)
        return [self.seed, ran, wrong, causes or "none", f"{hours:.0f}", f"{hours * 3600 / seconds:.0f}"]


def run(seed: int, count: int, directory: Path) -> Histories:
    """Run the histories without a result in the directory, one part at a time in each of two processes."""
    directory.mkdir(parents=True, exist_ok=True)

    def part(first: int) -> Part:
        file = directory / f"{first}.json"
        if file.exists():
            return Part(**json.loads(file.read_text()))
        done = Part.run(first, min(PART, seed + count - first))
        file.write_text(json.dumps(asdict(done)))
        return done

    with ThreadPoolExecutor(PROCESSES) as pool:
        return Histories(seed, tuple(pool.map(part, range(seed, seed + count, PART))))
