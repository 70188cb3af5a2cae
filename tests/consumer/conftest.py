"""Tests of the engine run on uvloop, as the daemon does, and fail if they leave a task behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest
import uvloop

from tests.client.conftest import no_task_left
from tests.client.peer import Peer
from tests.consumer.scripted_broker import ScriptedBroker

__all__ = ["no_task_left"]


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """The loop that rmqd runs on."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def broker() -> AsyncIterator[ScriptedBroker]:
    """A name server and broker on a free port, without topics."""
    async with Peer() as peer:
        yield ScriptedBroker(peer)
