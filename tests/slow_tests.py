"""Marks the tests of slow.txt as `slow`: `make unit` skips them.

`make slow` measures the tests that start no process, and lists the tests that take more than SLOW_SECONDS.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("slow.txt")
SLOW_SECONDS = 0.035


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--list-slow", action="store_true", help="write tests/slow.txt from this run's durations")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    listed = set() if config.option.list_slow else set(LIST.read_text().split())
    for item in items:
        if function_of(item.nodeid) in listed:
            item.add_marker(pytest.mark.slow)


def function_of(nodeid: str) -> str:
    """Return the id of a test without its parameters."""
    return nodeid.partition("[")[0]


class Lister:
    """Adds up the durations of each test's setup, call and teardown. The longest of its cases counts."""

    def __init__(self) -> None:
        self._seconds: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if type(report) is pytest.TestReport:  # a test's own time includes its subtests
            self._seconds[report.nodeid] += report.duration

    def pytest_sessionfinish(self) -> None:
        slow = {function_of(test) for test, seconds in self._seconds.items() if seconds > SLOW_SECONDS}
        LIST.write_text("".join(f"{test}\n" for test in sorted(slow)))


def pytest_configure(config: pytest.Config) -> None:
    if config.option.list_slow:
        config.pluginmanager.register(Lister())
