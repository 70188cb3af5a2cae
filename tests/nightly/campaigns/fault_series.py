"""Every fault several times, each on a new cluster. An interrupted series does not repeat finished runs."""

from __future__ import annotations

import json
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.nightly.campaigns.fault_kinds import KINDS, Fault
from tests.nightly.campaigns.faults import FaultPlan, FaultResult, Faults
from tests.nightly.campaigns.record import PAGE, add_row
from tests.rocketmq import RealCluster
from tests.rocketmq.fetch import say
from tests.rocketmq.spec import FILE_NAME

LAST_BEGIN_SECONDS = 16 * 60  # a run takes at most 4 minutes, and a call must end within 20
FIGURES = "figures.json"


@dataclass(frozen=True, slots=True)
class Figures:
    """The recorded figures of a run."""

    seed: int
    passed: bool
    sent: int
    lost: int
    repeated: dict[str, int]
    fell: int
    fell_at_takeover: int
    lifted_seconds: float
    stood_still_seconds: float
    damaged: dict[str, int]
    problems: list[str]
    seconds: float

    @classmethod
    def of(cls, result: FaultResult) -> Figures:
        """Take the figures from a result."""
        verdict = result.verdict
        return cls(
            seed=result.seed,
            passed=result.passed,
            sent=verdict.sent,
            lost=len(verdict.lost),
            repeated=dict(verdict.repeated),
            fell=len(verdict.falls),
            fell_at_takeover=verdict.fell_at_takeover,
            lifted_seconds=result.lifted_seconds,
            stood_still_seconds=result.stood_still_seconds,
            damaged=dict(result.damaged),
            problems=result.problems,
            seconds=result.seconds,
        )


def cells(fault: str, runs: Sequence[Figures]) -> list[object]:
    """Return the row of docs/proof/campaigns.md for all runs of a fault."""
    repeated: Counter[str] = Counter()
    for run in runs:
        repeated.update(run.repeated)
    problems = [problem for run in runs for problem in run.problems]
    return [
        fault,
        ", ".join(str(run.seed) for run in runs),
        sum(run.sent for run in runs),
        f"{sum(run.seconds for run in runs):.0f}",
        sum(run.lost for run in runs),
        "; ".join(f"{count}: {cause}" for cause, count in repeated.most_common()) or "none",
        f"{sum(run.fell for run in runs)}, {sum(run.fell_at_takeover for run in runs)}",
        f"{max(run.lifted_seconds for run in runs):.1f} s",
        f"{max(run.stood_still_seconds for run in runs):.1f} s",
        "; ".join(problems) or "none",
    ]


class FaultSeries:
    """`times` runs of each fault in a directory. A new start there continues with the missing runs."""

    def __init__(self, kinds: Iterable[str], times: int, seed: int, directory: Path, page: Path = PAGE) -> None:
        self._faults = [KINDS[kind] for kind in kinds]
        self._times = times
        self._seed = seed
        self._directory = directory.absolute()
        self._page = page
        self._last_begin = time.monotonic() + LAST_BEGIN_SECONDS
        self._runs: list[Figures] = []

    @property
    def passed(self) -> bool:
        """Whether every run is done and kept every promise."""
        return len(self._runs) == self._times * len(self._faults) and all(run.passed for run in self._runs)

    def run(self) -> None:
        """Run the missing runs. A fault gets its row when all its runs are done."""
        for place, fault in enumerate(self._faults):
            done = list[Figures]()
            for number in range(self._times):
                figures = self._read(fault, number)
                if figures is None and time.monotonic() > self._last_begin:
                    say("the time of this call is over; the same command goes on with what is missing")
                    return
                done.append(figures or self._do(fault, number, self._seed + 100 * place + number))
            self._runs += done
            self._record(fault, done)

    def _place(self, fault: Fault, number: int) -> Path:
        return self._directory / f"{fault.name}-{number + 1}"

    def _read(self, fault: Fault, number: int) -> Figures | None:
        path = self._place(fault, number) / FIGURES
        return Figures(**json.loads(path.read_text())) if path.exists() else None

    def _do(self, fault: Fault, number: int, seed: int) -> Figures:
        place = self._place(fault, number)
        if (place / "cluster" / FILE_NAME).exists():  # left by an interrupted run
            RealCluster.load(place / "cluster").stop()
        shutil.rmtree(place, ignore_errors=True)
        say(f"{fault.name}, run {number + 1} of {self._times}: {fault.says}")
        with RealCluster.start(fault.specs[number % len(fault.specs)], place / "cluster") as cluster:
            result = Faults(fault, FaultPlan(seed), cluster, place / "run", f"{fault.name}-{number + 1}").run()
        print(result.report(), flush=True)
        figures = Figures.of(result)
        (place / FIGURES).write_text(json.dumps(asdict(figures)))
        return figures

    def _record(self, fault: Fault, runs: Sequence[Figures]) -> None:
        recorded = self._directory / f"{fault.name}.recorded"
        if not recorded.exists():
            add_row("faults", cells(fault.name, runs), self._page)
            recorded.touch()
