"""Every test that needs a RocketMQ, against an older release; docs/proof/conformance.md gets what differs there."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as Tree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.nightly.conformance import page
from tests.rocketmq import release

TOP = Path(__file__).parents[3]
CHOSEN = "rocketmq or behaviour"
NOTHING_CHOSEN = 5  # pytest's status where no test is left


@dataclass(frozen=True, slots=True)
class OlderResult:
    """What a run gave; `behaviours` counts the rows of docs/proof/conformance.md by what became of them."""

    version: str
    tests: int
    skipped: int
    failed: tuple[str, ...]
    behaviours: Counter[str]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all that can be had there works."""
        return not self.failed

    def report(self) -> str:
        """For the person who ran it."""
        rows = ", ".join(f"{count} {what}" for what, count in sorted(self.behaviours.items()))
        head = f"RocketMQ {self.version}, {self.seconds:.0f} s: {self.tests} tests, {self.skipped} skipped"
        return "\n".join([head, f"behaviours: {rows}", *(f"FAILED {name}" for name in self.failed)])

    def cells(self) -> list[object]:
        """The row of the ledger."""
        kinds = ("the same", "different", "not there", "failed")
        return [
            *(self.version, self.tests, self.skipped, len(self.failed)),
            *(self.behaviours[kind] for kind in kinds),
            f"{self.seconds:.0f}",
        ]


class Older:
    """One run in a directory, a file of tests after the other; begun again there, it goes on where it was cut."""

    def __init__(self, version: str, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._version = version
        self._directory = directory

    def run(self) -> OlderResult:
        """Run what is left, and add it all up."""
        reports = [report for name in self._files() if (report := self._run(name)) is not None]
        return added_up(self._version, reports)

    def _files(self) -> list[str]:
        """The files that have a test which needs a RocketMQ."""
        done = self._pytest("--collect-only", "-q", capture=True)
        return sorted({line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line})

    def _run(self, name: str) -> Path | None:
        report = self._directory / f"{name.replace('/', '.')}.xml"
        if not report.exists():
            fresh = report.with_suffix(".new")
            begin = time.monotonic()
            done = self._pytest("--conformance", "-q", "--tb=short", "--show-capture=no", f"--junitxml={fresh}", name)
            print(f"{name}: {time.monotonic() - begin:.0f} s, status {done.returncode}", flush=True)
            if done.returncode == NOTHING_CHOSEN:
                return None
            fresh.rename(report)
        return report

    def _pytest(self, *arguments: str, capture: bool = False) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-o", "norecursedirs=.*", "-m", CHOSEN, *arguments],
            cwd=TOP,
            env={**os.environ, release.ENVIRONMENT: self._version},
            stdout=subprocess.PIPE if capture else None,
            text=True,
            check=False,
        )


def added_up(version: str, reports: list[Path]) -> OlderResult:
    """What pytest's reports (JUnit's XML) say together."""
    suites = [suite for report in reports for suite in Tree.parse(report).iter("testsuite")]
    cases = [case for suite in suites for case in suite.iter("testcase")]
    failed = [
        f"{case.get('classname')}::{case.get('name')}"
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]
    return OlderResult(
        version,
        len(cases),
        sum(case.find("skipped") is not None for case in cases),
        tuple(failed),
        behaviours(version),
        sum(float(suite.get("time", 0)) for suite in suites),
    )


def behaviours(version: str) -> Counter[str]:
    """How many rows of docs/proof/conformance.md are the same on a version, different, not there, failed or not run."""
    results = page.load().get(version, {})
    found: Counter[str] = Counter()
    for one in page.declared():
        result = results.get(one.title, "not run")
        if result == page.HOLDS:
            found["different" if one.differs else "the same"] += 1
        else:
            found["not there" if result.startswith(page.SKIPPED) else result] += 1
    return found
