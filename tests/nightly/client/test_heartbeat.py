"""Heartbeats: to every address, in parallel, periodically, and at once after changes."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from rmqd.codes import ResponseCode
from rmqd.errors import RemotingError
from tests.client.peer import Peer, Reply
from tests.client.running import running
from tests.client.test_heartbeat import HEART_BEAT, INTERVAL_SECONDS, World, world
from tests.waiting import WAIT_SECONDS, eventually

__all__ = ["world"]


async def test_each_change_of_a_broker_is_logged_once(world: World, peer: Peer) -> None:
    await world.know(peer)
    with capture_logs() as logs:
        for _ in range(3):
            await world.heartbeat.send_heartbeats()
        peer.on(HEART_BEAT, Reply(ResponseCode.SYSTEM_ERROR, "broken"))
        for _ in range(3):
            await world.heartbeat.send_heartbeats()
        peer.on(HEART_BEAT, Reply())
        await world.heartbeat.send_heartbeats()
    events = [line["event"] for line in logs if line["event"].startswith("broker.")]
    assert events == ["broker.up", "broker.down", "broker.up"]
    assert "broken" in next(line["reason"] for line in logs if line["event"] == "broker.down")


async def test_a_heartbeat_that_opens_the_connection_is_not_repeated(world: World, peer: Peer) -> None:
    """Other new connections cause a heartbeat."""
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await peer.received(HEART_BEAT)
        await world.clock.advance(INTERVAL_SECONDS - 1)
    assert len(peer.got(HEART_BEAT)) == 1


async def test_run_retries_after_a_failure_of_send_heartbeats(world: World, peer: Peer) -> None:
    """The consumer called `send_heartbeats` itself."""
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await peer.received(HEART_BEAT)
        peer.on(HEART_BEAT, Reply(ResponseCode.SYSTEM_ERROR, "starting"))
        assert isinstance((await world.heartbeat.send_heartbeats())[peer.address], Exception)
        peer.on(HEART_BEAT, Reply())
        await world.clock.until(
            lambda: world.heartbeat.brokers_up == {peer.address: True}, "the broker is up again", INTERVAL_SECONDS / 2
        )


async def test_cancelling_does_not_wait_for_a_silent_broker(world: World, peer: Peer) -> None:
    peer.on(HEART_BEAT, None)
    await world.know(peer)
    async with asyncio.timeout(WAIT_SECONDS), running(world.heartbeat.run()):
        await peer.received(HEART_BEAT)
    await world.remoting.close()
    with pytest.raises(RemotingError):
        await world.heartbeat.send_heartbeat_to(peer.address)


async def test_a_response_on_a_replaced_connection_does_not_count_for_the_next(world: World, peer: Peer) -> None:
    """The broker closes connections before it stops. Pulls on the next connection would find no group."""
    go_on = asyncio.Event()

    async def slow(command: object) -> Reply:
        await go_on.wait()
        return Reply()

    peer.on(HEART_BEAT, slow)
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await peer.received(HEART_BEAT)
        first = world.remoting.connected(peer.address)
        assert first is not None
        world.remoting.retire(first, "the broker says that it goes away")
        second = await world.remoting.connection(peer.address)
        go_on.set()
        await eventually(lambda: world.heartbeat.brokers_up == {peer.address: True}, "the first is answered")
        await peer.received(HEART_BEAT, 2)
        await eventually(lambda: world.heartbeat.is_known_on(second), "the second is answered")


async def test_settled_waits_for_a_heartbeat_whose_caller_was_cancelled(world: World, peer: Peer) -> None:
    """The heartbeat is already sent. Requests after its response take effect last."""
    go_on = asyncio.Event()

    async def slow(command: object) -> Reply:
        await go_on.wait()
        return Reply()

    peer.on(HEART_BEAT, slow)
    await world.know(peer)
    asking = asyncio.create_task(world.heartbeat.send_heartbeat_to(peer.address))
    await peer.received(HEART_BEAT)
    asking.cancel()
    await asyncio.wait((asking,))
    settled = asyncio.create_task(world.heartbeat.wait_for_pending(peer.address))
    await world.clock.advance(1)
    assert not settled.done()
    go_on.set()
    await settled
