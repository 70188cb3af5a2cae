"""Tests of the client run on uvloop, as the daemon does, and fail if they leave a task behind.

`RMQD_TEST_LOOP=asyncio` runs them on asyncio's own loop instead, as the engine on Spark does: `make nightly`.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from rmqd.client.remoting.remoting_client import RemotingClient
from tests.client.peer import Peer
from tests.clock import ManualClock

LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that the environment names."""
    name = os.environ.get("RMQD_TEST_LOOP", "uvloop")
    return {name: LOOPS[name]}


@pytest.fixture
async def peer() -> AsyncIterator[Peer]:
    """A scripted peer on a free port."""
    async with Peer() as peer:
        yield peer


@pytest.fixture
async def remoting() -> AsyncIterator[RemotingClient]:
    """A client with the system clock."""
    client = RemotingClient()
    yield client
    await client.close()


@pytest.fixture
def clock() -> ManualClock:
    """A clock that only the test moves."""
    return ManualClock()


@pytest.fixture
async def flowing(clock: ManualClock) -> AsyncIterator[ManualClock]:
    """The same clock, but its time advances automatically, so that sleeps end soon."""
    async with clock.flowing():
        yield clock


@pytest.fixture(autouse=True)
async def no_task_left() -> AsyncIterator[None]:
    """Fail if a task outlives the test."""
    yield
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:  # a cancelled task may need an iteration of the loop to end
        _, left = await asyncio.wait(left, timeout=1)
    assert not left, f"left running: {left}"
