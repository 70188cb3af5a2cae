"""Simulation: thousands of histories of groups and brokers on simulated hosts, by their seeds; and planted bugs."""

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
    """What `python -m tests.nightly.simulation --json` says of the histories from a seed on, in a process of its own.

    Raises SimulationError where it says nothing, and subprocess.TimeoutExpired.
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
    """What the histories from one seed on gave."""

    first: int
    histories: int
    wrong: dict[str, str]
    """What is wrong first, by the seed."""
    twice: dict[str, int]
    hours: float
    """Simulated."""
    seconds: float

    @classmethod
    def run(cls, first: int, count: int) -> Self:
        """Run them in a process of their own. Raises SimulationError."""
        return cls(**figures_of(first, count))


@dataclass(frozen=True, slots=True)
class Histories:
    """What all parts gave."""

    seed: int
    parts: tuple[Part, ...]

    @property
    def wrong(self) -> dict[str, str]:
        """What is wrong first, by the seed."""
        return {seed: what for part in self.parts for seed, what in part.wrong.items()}

    def report(self) -> str:
        """For the person who ran it."""
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
    """Run the histories that the directory has no verdict of, a part at a time in each of two processes."""
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
