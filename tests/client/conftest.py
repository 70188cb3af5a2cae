"""Every test of the client runs on uvloop and on asyncio's own loop, and fails if it leaves a task behind.

`make unit` runs them on uvloop, as the daemon does; only `make test` on asyncio's, as the engine on Spark does.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from rmqd.client.remoting.client import RemotingClient
from tests.client.peer import Peer
from tests.clock import ManualClock


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loops that rmqd runs on."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


def pytest_itemcollected(item: pytest.Item) -> None:
    """Leave asyncio's loop to `make test`."""
    if isinstance(item, pytest.Function) and "asyncio" in item.name.partition("[")[2].rstrip("]").split("-"):
        item.add_marker(pytest.mark.slow)


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """A scripted peer on a free port."""
    async with Peer() as peer:
        yield peer


@pytest.fixture
async def remoting() -> AsyncIterator[RemotingClient]:
    """By the machine's clock."""
    client = RemotingClient()
    yield client
    await client.close()


@pytest.fixture
def clock() -> ManualClock:
    """Stands still."""
    return ManualClock()


@pytest.fixture
async def flowing(clock: ManualClock) -> AsyncIterator[ManualClock]:
    """The same clock, and time goes on by itself: whoever sleeps by it, the test too, is awake soon."""
    async with clock.flowing():
        yield clock


@pytest.fixture(autouse=True)
async def no_task_left() -> AsyncIterator[None]:
    """A task that outlives what started it is a leak."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:  # a cancelled one may need a turn of the loop to end
        _, left = await asyncio.wait(left, timeout=1)
    assert not left, f"left running: {left}"
