"""The lifetimes of the run's clusters: from the first test that uses one to the last. These tests run in a row.

The timers of an idle broker take 5 to 8 % of a core, and all fixtures together start eight brokers.
"""

from __future__ import annotations

import collections
from collections.abc import Generator

import pytest

from tests.rocketmq.fixtures import STARTED_BY, clusters_used

USES_LEFT = pytest.StashKey[collections.Counter[str]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a cluster in a row, before all others. pytest-xdist starts groups in the order of tests."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, str]:
    started_by = [STARTED_BY[name] for name in clusters_used(item)]
    return not started_by, min(started_by, default="")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the tests that will use each fixture."""
    session.config.stash[USES_LEFT] = collections.Counter(name for item in session.items for name in _fixtures(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """End the clusters that no later test uses. A worker of pytest-xdist that runs fewer tests ends them at its end."""
    try:
        return (yield)
    finally:
        left = item.config.stash[USES_LEFT]
        left.subtract(_fixtures(item))
        for name in _fixtures(item):
            if not left[name]:
                _finish(item, name)


def _fixtures(item: pytest.Item) -> set[str]:
    """The cluster fixtures that a test uses, and the fixtures that start their clusters."""
    names = clusters_used(item)
    return {*names, *(STARTED_BY[name] for name in names)}


def _finish(item: pytest.Item, name: str) -> None:
    """Finish a fixture as at the end of the session. pytest has no call for this; it sets up finished ones again."""
    assert isinstance(item, pytest.Function)
    for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
        fixture.finish(item._request)  # type: ignore[arg-type]  # only its name is used, in an error
