"""The results for mutants, in a file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.nightly.campaigns.mutant_rooms import tests_of_all
from tests.nightly.campaigns.mutations import ROOT, Mutant


@dataclass(slots=True)
class Fate:
    """The result for one mutant."""

    status: str  # killed, hung, survived, unreached
    test: str = ""
    tests: int = 0  # the number of tests for it


class Fates:
    """The results for the mutants of a room, in a file that grows line by line."""

    def __init__(self, directory: Path, room: str) -> None:
        self._file = directory / f"{room}.jsonl"
        self._tests = stamp(sorted(path for folder in tests_of_all() for path in folder.rglob("*.py")))
        self._sources: dict[str, str] = {}
        self._kept: dict[str, dict[str, Any]] = {}
        if self._file.exists():
            for line in self._file.read_text().splitlines(keepends=True):
                if line.endswith("\n"):  # an interrupted run leaves an incomplete line
                    entry = json.loads(line)
                    self._kept[entry["key"]] = entry
            self._file.write_text("".join(json.dumps(entry) + "\n" for entry in self._kept.values()))

    def holds(self, mutant: Mutant) -> bool:
        """Return whether a result is valid: killed or hung until the module changes, others until a test does, too."""
        entry = self._kept.get(mutant.key)
        if entry is None or entry["source"] != self._source(mutant):
            return False
        return entry["status"] in ("killed", "hung") or entry["tests_stamp"] == self._tests

    def add(self, mutant: Mutant, fate: Fate) -> None:
        entry = {
            "key": mutant.key, "status": fate.status, "test": fate.test, "tests": fate.tests,
            "line": mutant.lines.start, "source": self._source(mutant), "tests_stamp": self._tests,
        }  # fmt: skip
        self._kept[mutant.key] = entry
        with self._file.open("a") as file:
            file.write(json.dumps(entry) + "\n")

    def of(self, mutant: Mutant) -> dict[str, Any]:
        """Return the entry of a mutant with a result."""
        return self._kept[mutant.key]

    def _source(self, mutant: Mutant) -> str:
        if mutant.path not in self._sources:
            self._sources[mutant.path] = stamp([ROOT / mutant.path])
        return self._sources[mutant.path]


def stamp(paths: Sequence[Path]) -> str:
    """Return a short hash of the files."""
    whole = hashlib.sha256()
    for path in paths:
        whole.update(path.read_bytes())
    return whole.hexdigest()[:16]
