"""Histories: thousands of random histories of the offset store and of hand-overs, in simulated time."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Histories:
    """The results of the histories of one kind."""

    kind: str
    seed: int
    figures: dict[str, int]
    failures: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether every history passed."""
        return not self.failures

    def report(self) -> str:
        return "\n".join([f"{self.kind} from seed {self.seed}: {self.figures}", *self.failures])

    def cells(self) -> list[object]:
        """The row of docs/proof/campaigns.md, without date and commit."""
        figures = dict(self.figures)
        ran, failed, seconds = (figures.pop(name, 0) for name in ("histories", "failed", "seconds"))
        return [self.kind, self.seed, ran, failed, "; ".join(f"{name}: {n}" for name, n in figures.items()), seconds]


def run(kind: str, seed: int, count: int) -> Histories:
    """Run `count` histories of a kind in a new process, with a fixed hash seed for reproducible sets."""
    command = [
        sys.executable,
        "-m",
        "tests.nightly.consumer.histories",
        kind,
        "--seed",
        str(seed),
        "--count",
        str(count),
    ]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    *failures, last = ended.stdout.splitlines() or [""]
    if not last.startswith("{"):
        raise RuntimeError(f"{' '.join(command)} ended with {ended.returncode}: {ended.stderr}")
    return Histories(kind, seed, json.loads(last), tuple(failures))
