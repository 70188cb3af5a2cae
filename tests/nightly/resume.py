"""A pytest plugin: `--resume FILE` skips the tests that the file names, and adds those that pass to it."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--resume", type=Path, metavar="FILE", help="skip the tests that have passed before")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    file = config.getoption("--resume")
    if file is None or not file.exists():
        return
    passed = set(file.read_text().split("\n"))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


class Recorder:
    """Appends each test that passed, at its end. A test with a failed subtest has not passed."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._called: set[str] = set()
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)
        elif report.when == "call" and report.passed:
            self._called.add(report.nodeid)
        elif report.when == "teardown" and report.nodeid in self._called - self._failed:
            with self._file.open("a") as passed:
                passed.write(f"{report.nodeid}\n")


def pytest_configure(config: pytest.Config) -> None:
    file = config.getoption("--resume")
    if file is not None and not hasattr(config, "workerinput"):  # pytest-xdist's workers report to the controller
        config.pluginmanager.register(Recorder(file))
