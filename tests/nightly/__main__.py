"""`python -m tests.nightly [PART...]`: run the tests that are too heavy for every change.

Their results are written to docs/proof/README.md.

A part that passed at this commit with this Python is not run again, and a part that was interrupted resumes: its
passed tests, and the finished steps of its campaign, are skipped. With uncommitted changes, each part starts again.
build/nightly/PART has the log and the figures of a part.

Three parts run at a time, one of each lane. A lane with more urgent timers has the higher priority.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as Tree
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Final, NoReturn

from tests.nightly.campaigns.record import DIRTY, commit
from tests.run_guard import guard

TOP: Final = Path(__file__).parents[2]
STATE: Final = TOP / "build" / "nightly"
PAGE: Final = TOP / "docs" / "proof" / "README.md"
NO_TESTS_LEFT: Final = 5
"""Exit status of pytest if every test of a resumed part has passed before."""


class Lane(IntEnum):
    """The parts of a lane run one after another, in parallel with other lanes. The value is their `nice`."""

    BROKERS = 0
    """Mostly waits for a real RocketMQ, and fails if its processes are kept from running."""
    TESTS = 2
    COMPUTES = 15
    """Needs only processor time, so other processes do not disturb it."""


@dataclass(frozen=True, slots=True)
class Part:
    """One command of the night. `{dir}` in an argument is the part's folder."""

    name: str
    arguments: tuple[str, ...]
    purpose: str
    environment: Mapping[str, str] = field(default_factory=dict)
    lane: Lane = Lane.TESTS

    @property
    def is_pytest(self) -> bool:
        return self.arguments[0] == "pytest"

    @property
    def folder(self) -> Path:
        return STATE / self.name

    def command(self) -> list[str]:
        """Return the command line, with the options that let pytest resume and count."""
        options = ["-p", "tests.nightly.resume", "--resume", "{dir}/passed", "--junitxml", "{dir}/junit.xml"]
        arguments = [*self.arguments, *(options if self.is_pytest else ())]
        command = ["nice", "-n", str(self.lane), sys.executable, "-m", *arguments]
        return [word.replace("{dir}", str(self.folder)) for word in command]


EVERYTHING: Final = ("-o", "norecursedirs=.*", "tests")
"""Options of pytest that collect the daily tests too. From `tests tests/nightly`, pytest would drop the second."""

WORKERS: Final = ("-n", "2", "--max-worker-restart", "0")
"""A crashed worker ends its part: another one would collect fewer tests, since some have passed."""

NOT_ON_OLDER: Final = ("--ignore=tests/nightly/broker", "--ignore=tests/nightly/campaigns")
"""The embedded broker is compared only with RocketMQ 5.5.0, and the long campaigns need to run only once."""


def _pytest(*arguments: str) -> tuple[str, ...]:
    return ("pytest", "-q", *arguments)


def _campaign(*arguments: str) -> tuple[str, ...]:
    return ("tests.nightly.campaigns", *arguments, "--dir", "{dir}/run")


PARTS: Final = (
    Part(
        "rocketmq",
        _pytest("-m", "rocketmq", "--long", *EVERYTHING),
        "every test against a real RocketMQ 5.5.0, with its Java, Go and C++ peers",
        {"RMQD_TEST_ROCKETMQ": "5.5.0"},
        lane=Lane.BROKERS,
    ),
    Part("spark", _pytest("-m", "spark and not rocketmq", "tests/nightly"), "Spark, beyond the smoke test"),
    Part(
        "cases",
        _pytest(*WORKERS, "--dist", "loadgroup", "-m", "not rocketmq and not spark", "tests/nightly"),
        "cases that need neither a real RocketMQ nor Spark",
    ),
    Part(
        "loops",
        _pytest(*WORKERS, "-m", "not rocketmq", "tests/client"),
        "the client on asyncio's own event loop",
        {"RMQD_TEST_LOOP": "asyncio"},
    ),
    Part(
        "embedded",
        _pytest("-m", "behaviour", "--long", *EVERYTHING),
        "every behaviour of docs/proof/conformance.md on the embedded broker",
        {"RMQD_TEST_ROCKETMQ": "embedded"},
    ),
    Part(
        "4.9.7",
        _pytest("-m", "rocketmq or behaviour", "--conformance", *NOT_ON_OLDER, *EVERYTHING),
        "rmqd and its commands on a real RocketMQ 4.9.7",
        {"RMQD_TEST_ROCKETMQ": "4.9.7"},
        lane=Lane.BROKERS,
    ),
    Part(
        "simulation",
        ("tests.nightly.simulation", "--count", "1000000", "--seconds", "300"),
        "new random histories",
        lane=Lane.COMPUTES,
    ),
    Part(
        "planted", _campaign("planted", "--count", "300"), "every planted bug is found by a history", lane=Lane.COMPUTES
    ),
    Part(
        "fuzz",
        _campaign("fuzz", "--executions", "20000"),
        "frames, configurations and requests from a fuzzer",
        lane=Lane.COMPUTES,
    ),
    Part(
        "mutants",
        _campaign("mutants", "--every", "5"),
        "small faults that the daily tests must notice",
        lane=Lane.COMPUTES,
    ),
)


@dataclass(slots=True)
class Figures:
    """The result of a part. Times are in seconds, summed over the calls of a part."""

    commit: str
    passed: bool = False
    cases: int = 0
    failed: int = 0
    skipped: int = 0
    wall_seconds: float = 0.0
    cpu_seconds: float = 0.0
    python: str = sys.version

    @classmethod
    def load(cls, part: Part) -> Figures:
        """Return the figures so far at this commit with this Python. Others are removed, with the folder."""
        try:
            figures = cls(**json.loads((part.folder / "figures.json").read_text()))
        except (OSError, ValueError, TypeError):
            figures = cls("")
        now = commit()
        if (figures.commit, figures.python) != (now, sys.version) or now.endswith(DIRTY):
            shutil.rmtree(part.folder, ignore_errors=True)
            figures = cls(now)
        part.folder.mkdir(parents=True, exist_ok=True)
        figures.save(part)  # a part that is killed resumes too
        return figures

    def save(self, part: Part) -> None:
        (part.folder / "figures.json").write_text(json.dumps(asdict(self), indent=1))


def run(part: Part) -> Figures:
    """Run a part, unless it has passed before."""
    figures = Figures.load(part)
    if figures.passed:
        print(f"{part.name}: passed before at {figures.commit}", flush=True)
        return figures
    print(f"{part.name}: {part.purpose}; log: {part.folder / 'log'}", flush=True)
    status = _call(part, figures)
    if part.is_pytest:
        _count(part, figures)
        figures.passed = status in (0, NO_TESTS_LEFT) and figures.cases > figures.skipped
    else:
        figures.passed = status == 0
    if figures.commit != commit():  # some of it ran with other files
        figures.commit = figures.commit.removesuffix(DIRTY) + DIRTY
    figures.save(part)
    print(f"{part.name}: {'passed' if figures.passed else 'FAILED'} after {figures.wall_seconds:.0f} s", flush=True)
    return figures


def _call(part: Part, figures: Figures) -> int:
    """Run the command once, and add its times. Return its exit status."""
    began = time.monotonic()
    # with CI set, a test fails if the program that it needs is missing
    environment = {**os.environ, "CI": "true", "PYTHONUNBUFFERED": "1", **part.environment}
    with (part.folder / "log").open("a") as log:
        process = subprocess.Popen(
            part.command(), cwd=TOP, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    figures.wall_seconds += time.monotonic() - began
    figures.cpu_seconds += usage.ru_utime + usage.ru_stime
    return process.returncode


def _count(part: Part, figures: Figures) -> None:
    """Count the cases of this call, and the cases that passed in earlier calls."""
    try:
        suites = [*Tree.parse(part.folder / "junit.xml").getroot().iter("testsuite")]
    except (OSError, Tree.ParseError):
        return
    figures.failed = sum(int(suite.get(name, 0)) for suite in suites for name in ("failures", "errors"))
    figures.skipped = sum(int(suite.get("skipped", 0)) for suite in suites)
    passed = part.folder / "passed"
    names = {*passed.read_text().split("\n")} - {""} if passed.exists() else {}
    figures.cases = figures.failed + figures.skipped + len(names)


def record(part: Part, figures: Figures) -> None:
    """Replace the part's row of docs/proof/README.md."""
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    result = "passed" if figures.passed else "failed"
    counts = (figures.cases, figures.failed, figures.skipped) if part.is_pytest else ("", "", "")
    cells = (part.name, part.purpose, today, figures.commit, result, *counts)
    row = f"| {' | '.join(map(str, cells))} | {figures.wall_seconds:.0f} | {figures.cpu_seconds:.0f} |"
    lines = [line for line in PAGE.read_text().splitlines() if not line.startswith(f"| {part.name} |")]
    table = next(number for number, line in enumerate(lines) if line.startswith("| part |")) + 1
    place = [one.name for one in PARTS].index(part.name)
    before = {f"| {one.name} |" for one in PARTS[:place]}
    at = max((number for number, line in enumerate(lines) if any(map(line.startswith, before))), default=table)
    PAGE.write_text("\n".join([*lines[: at + 1], row, *lines[at + 1 :], ""]))


def _end(number: int, frame: object) -> NoReturn:
    os._exit(128 + number)  # not sys.exit, which would wait for the parts: the guard ends them


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every part passed."""
    parser = argparse.ArgumentParser(prog="make nightly", description=__doc__)
    names = [part.name for part in PARTS]
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(names)} (default: all)")
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(names):
        parser.error(f"{', '.join(sorted(unknown))} is not a part; expected {', '.join(names)}")
    parts = [part for part in PARTS if not options.parts or part.name in options.parts]
    failed = []
    with ExitStack() as stack:
        lanes = {lane: stack.enter_context(ThreadPoolExecutor(max_workers=1)) for lane in Lane}
        runs = {lanes[part.lane].submit(run, part): part for part in parts}
        for done in as_completed(runs):
            part, figures = runs[done], done.result()
            record(part, figures)
            if not figures.passed:
                failed.append(part.name)
    print(f"failed: {', '.join(failed)}" if failed else "all parts passed", flush=True)
    return len(failed) > 0


def run_guarded(arguments: Sequence[str]) -> int:
    """The same in a process of its own: the parts end with it."""
    guard()
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(ending, _end)
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run_guarded(sys.argv[1:]))
