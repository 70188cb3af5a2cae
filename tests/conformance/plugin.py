"""Options that select conformance tests and write their results to docs/proof/conformance.md."""

from __future__ import annotations

import pytest

from tests.conformance.declaration import MARKER, declared_by
from tests.rocketmq import release

RECORDER = "tests.nightly.conformance.recorder"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance", action="store_true", help="write docs/proof/conformance.md; includes --long")
    parser.addoption("--long", action="store_true", help="also run tests that take minutes")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", f"{MARKER}(declaration): proves a row of docs/proof/conformance.md")
    if config.getoption("--conformance"):
        config.pluginmanager.import_plugin(RECORDER)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect the long tests, except in nightly runs and `make conformance`."""
    if config.getoption("--conformance") or config.getoption("--long"):
        return
    left_out = [item for item in items if any(one.long for one in declared_by([*item.iter_markers(MARKER)]))]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test if the broker is too old for its behaviour."""
    version = release.named(release.wanted()).java
    for one in declared_by([*item.iter_markers(MARKER)]):
        if one.since and _numbers(version) < _numbers(one.since):
            pytest.skip(f"not in RocketMQ {version}: since {one.since}")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))
