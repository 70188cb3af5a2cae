"""A client in a network that fails for seconds, on simulated hosts."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

import pytest

from rmqd.broker.peer_channel import RemotingServer, Reply
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.codes import RequestCode
from rmqd.errors import RemotingError
from tests.simulation.loop import Host, LoopClock, SimulatedLoop
from tests.simulation.network import Network

ADDRESS = "10.0.0.1:10911"
ASK = RequestCode.GET_MAX_OFFSET


def simulated(loop: SimulatedLoop, story: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine on this loop, and end its remaining tasks."""
    asyncio.set_event_loop(loop)
    try:
        loop.run_until_complete(story)
    finally:
        loop.end()
        asyncio.set_event_loop(None)


async def serve() -> None:
    """Answer every request of one kind."""
    server = RemotingServer("broker")
    server.serve({ASK: lambda channel, request: Reply()})
    await server.listen("10.0.0.1", 10911)


def test_a_connection_that_recovers_during_a_failing_reconnect_is_used_again() -> None:
    """Otherwise its breaker stays open, and pulls are never sent again."""
    loop = SimulatedLoop()
    network = Network(loop, random.Random(1))
    server, client = Host(loop, "server"), Host(loop, "client")

    async def ask(remoting: RemotingClient) -> None:
        await remoting.invoke(ADDRESS, ASK, {}, timeout_seconds=2.5)

    async def story() -> None:
        await server.spawn(serve())
        remoting = RemotingClient(clock=LoopClock())
        await ask(remoting)
        network.apart.add(frozenset(("server", "client")))
        with pytest.raises(RemotingError):
            await ask(remoting)
        await asyncio.sleep(remoting.breakers.remaining_pause_seconds(ADDRESS))
        probe = asyncio.create_task(ask(remoting))
        await asyncio.sleep(0.1)
        network.apart.clear()  # earlier bytes arrive, but the new connection is never made
        await probe
        remoting.breakers.raise_until_responding(ADDRESS)
        await ask(remoting)
        await remoting.close()

    simulated(loop, on(client, story()))


async def on(host: Host, story: Coroutine[Any, Any, None]) -> None:
    await host.spawn(story)
