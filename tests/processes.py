"""A test that starts a process without the marker `process` fails, because `make unit` skips the marked tests.

Python reports a start as an audit event. Two ways of starting report none: uvloop calls fork itself and runs the fork
hooks, and multiprocessing calls the C function behind `subprocess` directly.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Generator
from multiprocessing import util
from typing import Any, Final

import pytest

EVENTS: Final = frozenset(
    ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.exec", "os.spawn", "os.system")
)
ALLOWED: Final = ("process", "rocketmq", "spark")
CALLS_SHOWN: Final = 12


class _Starts:
    """The process starts of the running test."""

    def __init__(self) -> None:
        self._places: list[str] | None = None

    def begin(self) -> None:
        """Start recording for the next test."""
        self._places = []

    def note(self) -> None:
        """Called when a process is about to start, in any thread."""
        if self._places is not None:
            self._places.append("".join(traceback.format_stack(limit=CALLS_SHOWN)[:-2]))

    def end(self) -> list[str]:
        """Stop recording, and return the stack of each start."""
        places, self._places = self._places or [], None
        return places


_starts = _Starts()


def _audit(event: str, _: tuple[Any, ...]) -> None:
    if event in EVENTS:
        _starts.note()


def _noting(start: Callable[..., int]) -> Callable[..., int]:
    def started(*arguments: Any) -> int:
        _starts.note()
        return start(*arguments)

    return started


def pytest_configure() -> None:
    """Install the hooks. An audit hook stays until the end of the process."""
    sys.addaudithook(_audit)
    os.register_at_fork(before=_starts.note)
    util.spawnv_passfds = _noting(util.spawnv_passfds)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None]:
    """Start recording before the fixtures of the test, whose starts count too."""
    if not any(map(item.get_closest_marker, ALLOWED)):
        _starts.begin()
    return (yield)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown() -> Generator[None]:
    """Fail the test at its end, because the tested code could handle an error at the start itself."""
    try:
        return (yield)
    finally:
        places = _starts.end()
        if places:
            pytest.fail(f"it starts a process: mark it with pytest.mark.process\n{places[0]}", pytrace=False)
