"""`python -m tests.nightly.campaigns.mutant_runs ROOM DIRECTORY N`: the tests against every N-th mutant of a room.

One process collects the tests once and forks a child for each mutant. The child replaces the code of the mutated
function and runs the tests that reach the changed lines, the nearest and quickest first, until one fails twice.
Code that runs on import, such as constants, needs a new process that imports the mutated module.

The lines that each test reaches, and its duration, are measured first. They and the results are kept in the
directory. So a new start resumes an interrupted run, and a run after a change judges only the affected mutants again.
"""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.nightly.campaigns.mutant_code import Instead, live_code
from tests.nightly.campaigns.mutant_fates import Fate, Fates
from tests.nightly.campaigns.mutant_reach import Plugin, Reach, begin_child, reaches
from tests.nightly.campaigns.mutant_reach import arguments as pytest_arguments
from tests.nightly.campaigns.mutant_rooms import ROOMS, Room
from tests.nightly.campaigns.mutations import ROOT, Mutant

SIDE_BY_SIDE = 6  # tests mostly wait for a timer: six of them suit two cores
FARTHER_SECONDS = 30.0  # for one mutant's tests outside of the room's folders
HANG_SECONDS = 10.0  # beyond five times the usual duration of a test


class _OneMutant:
    """A process in which all tests see one mutant."""

    def __init__(self, order: Sequence[str], say_to: int) -> None:
        self.plugin = Plugin(self)
        self._order = order
        self._say_to = say_to

    def run(self, items: list[pytest.Item]) -> None:
        by_id = {item.nodeid: item for item in items}
        _judge(self.plugin, [by_id[test] for test in self._order], self._say_to)


def _judge(plugin: Plugin, items: Sequence[pytest.Item], say_to: int) -> None:
    """Run tests until one fails twice, and report the progress to the parent."""
    for item in items:
        for _ in range(2):  # a busy machine may fail a test once, but not twice
            _tell(say_to, "begin", item.nodeid)
            if plugin.passes(item):
                break
        else:
            _tell(say_to, "killed", item.nodeid)
            return
    _tell(say_to, "survived", "")


def _tell(say_to: int, word: str, test: str) -> None:
    os.write(say_to, json.dumps([word, test]).encode() + b"\n")


@dataclass(slots=True)
class _Child:
    """A process that judges one mutant."""

    mutant: Mutant
    pid: int
    reads: int
    directory: Path
    tests: int
    test: str = ""  # the running test
    deadline: float = 0.0
    heard: bytes = b""


@dataclass(slots=True)
class _Room:
    """Judges the mutants of a room, several at the same time."""

    room: Room
    directory: Path
    every: int
    plugin: Plugin = field(init=False)
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _reach: dict[str, Reach] = field(default_factory=dict)
    _children: dict[int, _Child] = field(default_factory=dict)
    _sharp: dict[tuple[str, str], set[str]] = field(default_factory=lambda: defaultdict(set))

    def __post_init__(self) -> None:
        self.plugin = Plugin(self)

    def run(self, items: list[pytest.Item]) -> None:
        self._items = {item.nodeid: item for item in items}
        self._reach = reaches(self.plugin, items, self.directory / "reach.json", SIDE_BY_SIDE)
        bad = [test for test, reach in self._reach.items() if not reach.passed]
        print(f"{len(items)} tests; these fail without a mutant and judge none: {bad or 'none'}", flush=True)
        kept = Fates(self.directory, self.room.name)
        todo = [mutant for mutant in self.room.mutants()[:: self.every] if not kept.holds(mutant)]
        print(f"{self.room.name}: {len(todo)} mutants to judge", flush=True)
        waiting, selector, done = iter(todo), selectors.DefaultSelector(), 0
        try:
            while True:
                while len(self._children) < SIDE_BY_SIDE and (mutant := next(waiting, None)):
                    order = self._order(mutant)
                    if not order:
                        kept.add(mutant, Fate("unreached"))
                        continue
                    child = self._start(mutant, order)
                    self._children[child.reads] = child
                    selector.register(child.reads, selectors.EVENT_READ)
                if not self._children:
                    break
                heard = {key.fd for key, _ in selector.select(timeout=0.2)}
                for child in list(self._children.values()):
                    if fate := self._look(child, heard=child.reads in heard):
                        selector.unregister(child.reads)
                        self._end(child)
                        kept.add(child.mutant, fate)
                        if fate.status == "killed":
                            self._sharp[child.mutant.path, child.mutant.where].add(fate.test)
                        done += 1
                        if not done % 50:
                            print(f"{done} of {len(todo)}", flush=True)
        finally:
            for child in list(self._children.values()):
                self._end(child)

    def _order(self, mutant: Mutant) -> list[str]:
        """Return the tests that reach the mutant: first the room's, then others for a limited time; quickest first.

        A constant has no line that a test reaches, so all tests of the room judge it. Tests that detected another
        mutant of the same function come before all others.
        """
        lines = set(mutant.lines)
        nearest, farther = list[str](), list[str]()
        for test, reach in sorted(self._reach.items(), key=lambda each: each[1].seconds):
            is_near = self.room.is_nearest(test)
            reached = reach.lines.get(mutant.path, ())
            if reach.passed and (is_near if not mutant.where else lines.intersection(reached)):
                (nearest if is_near else farther).append(test)
        left, near_enough = FARTHER_SECONDS, []
        for test in farther:
            left -= self._reach[test].seconds
            if left > 0:
                near_enough.append(test)
        order, sharp = nearest + near_enough, self._sharp[mutant.path, mutant.where]
        return sorted(order, key=lambda test: test not in sharp)

    def _start(self, mutant: Mutant, order: list[str]) -> _Child:
        reads, writes = os.pipe()
        directory = self.directory / "tmp" / f"{time.monotonic_ns()}"
        directory.mkdir(parents=True)
        code = None if not mutant.where else live_code(mutant)
        if code is None:
            pid = _start_process(mutant, order, writes, directory)
        elif not (pid := os.fork()):
            try:
                begin_child(self._items[order[0]].config, directory)
                function, changed = code
                function.__code__ = changed
                _judge(self.plugin, [self._items[test] for test in order], writes)
            except MemoryError:
                pass  # the exit without a report marks the mutant as killed
            except BaseException as error:  # noqa: BLE001  also an exit: a child reports why it ends
                _tell(writes, "broken", repr(error))
            finally:
                os._exit(0)
        os.close(writes)
        return _Child(mutant, pid, reads, directory, len(order), deadline=time.monotonic() + 60)

    def _look(self, child: _Child, *, heard: bool) -> Fate | None:
        if heard:
            data = os.read(child.reads, 65536)
            if not data:  # the mutant ended its process, or used up its memory
                return Fate("killed", child.test, child.tests)
            *lines, child.heard = (child.heard + data).split(b"\n")
            for line in lines:
                word, test = json.loads(line)
                if word == "broken":
                    raise RuntimeError(f"{child.mutant.key}: {test}")
                if word != "begin":
                    return Fate(word, test, child.tests)
                child.test = test
                child.deadline = time.monotonic() + HANG_SECONDS + 5 * self._reach[test].seconds
        if time.monotonic() > child.deadline:
            return Fate("hung", child.test, child.tests)
        return None

    def _end(self, child: _Child) -> None:
        del self._children[child.reads]
        os.close(child.reads)
        with suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)
        with suppress(ChildProcessError):
            os.waitpid(child.pid, 0)
        shutil.rmtree(child.directory, ignore_errors=True)


def _start_process(mutant: Mutant, order: list[str], writes: int, directory: Path) -> int:
    """Start a process that imports the mutant instead of its module."""
    source, tests = directory / "mutant.py", directory / "tests.json"
    source.write_text(mutant.source)
    tests.write_text(json.dumps(order))
    command = [sys.executable, "-m", __spec__.name, "--imported", mutant.module, str(directory), str(writes)]
    devnull = subprocess.DEVNULL
    started = subprocess.Popen(  # `_end` waits for it by its id
        command, cwd=ROOT, pass_fds=[writes], stdin=devnull, stdout=devnull, stderr=devnull
    )
    started.returncode = 0  # so that Popen does not wait for it
    return started.pid


def _imported(module: str, directory: Path, say_to: int) -> None:
    sys.meta_path.insert(0, Instead(module, directory / "mutant.py"))
    judge = _OneMutant(json.loads((directory / "tests.json").read_text()), say_to)
    ended = pytest.main([*pytest_arguments(), f"--basetemp={directory / 'tests'}"], plugins=[judge.plugin])
    if ended:
        _tell(say_to, "killed", "")


def main(arguments: Sequence[str]) -> int:
    """Return 0 if every mutant of the room was judged."""
    if arguments[0] == "--imported":
        _imported(arguments[1], Path(arguments[2]), int(arguments[3]))
        return 0
    room, directory, every = arguments
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    os.environ["PYTHONHASHSEED"] = "0"
    judge = _Room(ROOMS[room], Path(directory), int(every))
    return int(pytest.main([*pytest_arguments(), f"--basetemp={directory}/pytest"], plugins=[judge.plugin]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
