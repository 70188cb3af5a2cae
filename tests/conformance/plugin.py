"""pytest's part of the conformance suite: which tests run, and what they gave."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.conformance import page
from tests.conformance.declaration import MARKER, Behaviour, declared_by
from tests.rocketmq import release

OUTCOMES = pytest.StashKey[dict[Behaviour, list[str]]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--conformance` records, and leaves nothing out."""
    parser.addoption(
        "--conformance", action="store_true", help="run the long tests too, and write docs/conformance.md from results"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", f"{MARKER}(declaration): proves a row of docs/conformance.md")
    config.stash[OUTCOMES] = {}


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long ones to `make conformance`."""
    if config.getoption("--conformance"):
        return
    left_out = [item for item in items if any(one.long for one in _declared(item))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the broker is too old for."""
    version = release.named(release.wanted()).java
    for one in _declared(item):
        if one.since and _numbers(version) < _numbers(one.since):
            pytest.skip(f"not in RocketMQ {version}: since {one.since}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Remember what became of each behaviour's tests."""
    report = yield
    if report.failed:
        result = page.FAILED
    elif report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        result = f"{page.SKIPPED}: {reason.removeprefix('Skipped: ')}"
    elif report.when == "call":
        result = page.HOLDS
    else:
        return report
    for one in _declared(item):
        item.config.stash[OUTCOMES].setdefault(one, []).append(result)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the page."""
    outcomes = session.config.stash[OUTCOMES]
    if session.config.getoption("--conformance") and outcomes:
        page.record(release.wanted(), {one.title: _together(results) for one, results in outcomes.items()})


def _declared(item: pytest.Item) -> list[Behaviour]:
    return declared_by([*item.iter_markers(MARKER)])


def _together(results: list[str]) -> str:
    """One failure fails a behaviour; that some of its tests have no place on a version does not."""
    return next((result for result in (page.FAILED, page.HOLDS) if result in results), results[0])


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
