"""Runs collected tests one by one, and records which lines of the mutated modules each test reaches."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol, cast

import pytest

from tests.nightly.campaigns.mutant_fates import stamp
from tests.nightly.campaigns.mutant_rooms import ROOMS, tests_of_all
from tests.nightly.campaigns.mutations import ROOT

MEMORY_BYTES = 4 << 30
PROFILE = "mutants"  # a hypothesis profile
COUNTED_OUT = "process or rocketmq or spark"


@dataclass(slots=True)
class Reach:
    """The effects of a test without mutants."""

    stamp: str  # hash of the mutated modules and the test's file; the entry is valid until the hash changes
    seconds: float
    passed: bool
    lines: dict[str, list[int]]  # executed lines by module


class Judge(Protocol):
    """Runs after the tests are collected."""

    def run(self, items: list[pytest.Item]) -> None: ...


class Plugin:
    """Passes the collected tests to a judge instead of running them, and records failures."""

    def __init__(self, judge: Judge) -> None:
        self.failed = False
        self._judge = judge

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self) -> None:
        import hypothesis  # pytest must rewrite its assertions first

        hypothesis.settings.register_profile(
            PROFILE,
            deadline=None,
            max_examples=30,
            derandomize=True,
            database=None,
            phases=(hypothesis.Phase.explicit, hypothesis.Phase.generate),  # the smallest failure is irrelevant
            suppress_health_check=list(hypothesis.HealthCheck),
        )

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            raise session.Interrupted("tests cannot be collected")
        self._judge.run(session.items)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed |= report.failed

    def passes(self, item: pytest.Item) -> bool:
        """Run a test, and return whether it passes."""
        self.failed = False
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=None)
        return not self.failed


def arguments() -> Iterator[str]:
    """Yield pytest's arguments: the tests of all rooms in this process, without resources that forks would share."""
    yield from ("-q", "-n0", "--capture=sys", "-p", "no:cacheprovider", "-p", "no:faulthandler", "--tb=no")
    yield from (f"--hypothesis-profile={PROFILE}", "-m", f"not ({COUNTED_OUT})", *map(str, tests_of_all()))


def begin_child(config: pytest.Config, directory: Path) -> None:
    """Give a forked process its own signals, files, limits and directory."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    void = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(void, standard)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    directory.mkdir(exist_ok=True)
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._given_basetemp, factory._basetemp = directory / "tests", None


def reaches(plugin: Plugin, items: list[pytest.Item], file: Path, side_by_side: int) -> dict[str, Reach]:
    """Return the reach of each test. Only tests with a changed stamp are measured."""
    mutated = stamp([ROOT / path for room in ROOMS.values() for path in room.paths()])
    stamps = {path: mutated + stamp([path]) for path in {item.path for item in items}}
    known: dict[str, Reach] = {}
    if file.exists():
        known = {test: Reach(**reach) for test, reach in json.loads(file.read_text()).items()}
    stamp_of = {item.nodeid: stamps[item.path] for item in items}
    known = {test: reach for test, reach in known.items() if reach.passed and reach.stamp == stamp_of.get(test)}
    todo = [item for item in items if item.nodeid not in known]
    if todo:
        print(f"measuring what {len(todo)} tests reach", flush=True)
    parts = [todo[number::side_by_side] for number in range(side_by_side)]
    children: list[tuple[int, Path]] = []
    for number, part in enumerate(parts):
        told = file.with_name(f"reach-{number}.json")
        told.unlink(missing_ok=True)
        if not (pid := os.fork()):
            try:
                begin_child(items[0].config, file.with_name(f"reach-{number}.tmp"))
                told.write_text(json.dumps(_measured(plugin, part, stamps)))
            finally:
                os._exit(0)
        children.append((pid, told))
    for pid, told in children:
        os.waitpid(pid, 0)
        for test, reach in json.loads(told.read_text()).items():
            known[test] = Reach(**reach)
        told.unlink()
        shutil.rmtree(told.with_suffix(".tmp"), ignore_errors=True)
    file.write_text(json.dumps({test: asdict(reach) for test, reach in known.items()}))
    return known


def _measured(plugin: Plugin, items: Sequence[pytest.Item], stamps: dict[Path, str]) -> dict[str, dict[str, object]]:
    watched = {str(ROOT / path): path for room in ROOMS.values() for path in room.paths()}
    reached: dict[str, set[int]] = {}

    def line(frame: FrameType, _event: str, _arg: object) -> Any:
        reached.setdefault(frame.f_code.co_filename, set()).add(frame.f_lineno)
        return line

    def call(frame: FrameType, event: str, arg: object) -> Any:
        return line(frame, event, arg) if frame.f_code.co_filename in watched else None

    found = {}
    for item in items:
        reached.clear()
        began = time.monotonic()
        sys.settrace(call)
        threading.settrace(call)  # a test of `rmqd.testing` runs its group in a thread
        try:
            passed = plugin.passes(item)
        finally:
            sys.settrace(None)
            threading.settrace(cast("Any", None))
        lines = {watched[path]: sorted(numbers) for path, numbers in reached.items()}
        seconds = round(time.monotonic() - began, 3)
        found[item.nodeid] = asdict(Reach(stamps[item.path], seconds, passed, lines))
    return found
