"""The pytest plugin behind `--conformance`: it writes docs/proof/conformance.md from the results of the tests."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.conformance.declaration import MARKER, Behaviour, declared_by
from tests.nightly.conformance import page
from tests.rocketmq import release

OUTCOMES: dict[Behaviour, list[str]] = {}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Record the result of each behaviour's tests."""
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
    for one in declared_by([*item.iter_markers(MARKER)]):
        OUTCOMES.setdefault(one, []).append(result)
    return report


def pytest_sessionfinish() -> None:
    if OUTCOMES:
        page.record(release.wanted(), {one.title: _together(results) for one, results in OUTCOMES.items()})


def _together(results: list[str]) -> str:
    """Combine the results of one behaviour: a failure fails it, a skipped test does not."""
    return next((result for result in (page.FAILED, page.HOLDS) if result in results), results[0])
