"""How long the run's clusters live: from the first test that uses one to the last, and those tests come in a row.

An idle broker takes 5 to 8 % of a core by its timers, and all fixtures together start eight.
"""

from __future__ import annotations

import collections
from collections.abc import Generator

import pytest

from tests.rocketmq.fixtures import STARTED_BY, clusters_used

USES_LEFT = pytest.StashKey[collections.Counter[str]]()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests of one cluster in a row, and first of all: pytest-xdist starts its groups in the order of their tests."""
    items.sort(key=_place)


def _place(item: pytest.Item) -> tuple[bool, str]:
    started_by = [STARTED_BY[name] for name in clusters_used(item)]
    return not started_by, min(started_by, default="")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Count the tests that will use each fixture."""
    session.config.stash[USES_LEFT] = collections.Counter(name for item in session.items for name in _fixtures(item))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, None, None]:
    """End the clusters that no later test uses; a worker of pytest-xdist that runs fewer tests ends them at its end."""
    try:
        return (yield)
    finally:
        left = item.config.stash[USES_LEFT]
        left.subtract(_fixtures(item))
        for name in _fixtures(item):
            if not left[name]:
                _finish(item, name)


def _fixtures(item: pytest.Item) -> set[str]:
    """The fixtures over clusters that the test has, and those behind them."""
    names = clusters_used(item)
    return {*names, *(STARTED_BY[name] for name in names)}


def _finish(item: pytest.Item, name: str) -> None:
    """As at the end of the session. pytest sets up anew what it finds finished, and has no call for it."""
    assert isinstance(item, pytest.Function)
    for fixture in item.session._fixturemanager.getfixturedefs(name, item) or ():
        fixture.finish(item._request)  # type: ignore[arg-type]  # of which it takes the name alone, for an error
