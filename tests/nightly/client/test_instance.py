"""ClientInstance: groups that register and unregister, and the end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.codes import ResponseCode
from rmqd.wire.command import RemotingCommand
from tests.client.members import Member
from tests.client.peer import Peer, Reply
from tests.client.running import running
from tests.client.test_instance import HEART_BEAT, UNREGISTER, client, groups_of, name_server
from tests.waiting import eventually

__all__ = ["client", "name_server"]


async def test_no_unregister_is_sent_to_a_broker_without_a_connection(client: ClientInstance, peer: Peer) -> None:
    """The broker removed the client when the connection was closed."""
    run = asyncio.create_task(client.run())
    client.register(Member("g", "T"))
    await eventually(lambda: client.heartbeat.brokers_up.get(peer.address), "the broker is up")
    await peer.down()
    await eventually(lambda: not client.heartbeat.brokers_up[peer.address], "the broker is down")
    await peer.listen()
    client.stop()
    await run
    assert peer.got(UNREGISTER) == []


async def test_unregister_is_sent_to_a_broker_that_refused_a_heartbeat(client: ClientInstance, peer: Peer) -> None:
    """The broker was busy, and still lists the client."""
    run = asyncio.create_task(client.run())
    client.register(Member("g", "T"))
    await eventually(lambda: client.heartbeat.brokers_up.get(peer.address), "the broker is up")
    peer.on(HEART_BEAT, Reply(ResponseCode.SYSTEM_BUSY))
    client.heartbeat.send_heartbeats_soon()
    await eventually(lambda: not client.heartbeat.brokers_up[peer.address], "the broker counts as down")
    client.stop()
    await run
    assert len(peer.got(UNREGISTER)) == 1


async def test_unregister_is_sent_after_a_delayed_first_heartbeat(
    client: ClientInstance, peer: Peer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The heartbeat contains the group and waits for a connection. Sent later, it would register the group again."""
    may_connect, connects, right = asyncio.Event(), asyncio.Event(), client.remoting.invoke

    async def invoke(address: str, code: int, *arguments: Any) -> RemotingCommand:
        if code == HEART_BEAT:
            connects.set()
            await may_connect.wait()
        return await right(address, code, *arguments)

    monkeypatch.setattr(client.remoting, "invoke", invoke)
    async with running(client.run()):
        client.register(Member("g", "T"))
        await connects.wait()
        leaving = asyncio.create_task(client.unregister("g"))
        await asyncio.sleep(0)
        may_connect.set()
        await leaving
        assert [command.code for command in peer.requests if command.code in (HEART_BEAT, UNREGISTER)][-1] == UNREGISTER


async def test_a_group_can_register_again_while_it_unregisters(client: ClientInstance, peer: Peer) -> None:
    """The broker may handle the new heartbeat before the unregister, so another one follows its response."""
    async with running(client.run()):
        client.register(Member("g", "T"))
        await eventually(lambda: client.heartbeat.brokers_up.get(peer.address), "the broker is up")
        release = asyncio.Event()

        async def late() -> Reply:
            await release.wait()
            return Reply()

        peer.on(UNREGISTER, lambda _: late())
        leaving = asyncio.create_task(client.unregister("g"))
        await peer.received(UNREGISTER)
        before = len(peer.got(HEART_BEAT))
        client.register(Member("g", "T"))
        await peer.received(HEART_BEAT, before + 1)
        await client.heartbeat.wait_for_pending(peer.address)
        release.set()
        await leaving
        await peer.received(HEART_BEAT, before + 2)
        assert groups_of(peer) == ["g"]
        assert client.routes.queues("T")


async def test_the_port_of_the_vip_channel_is_two_lower_if_enabled(name_server: Peer) -> None:
    plain = ClientInstance(ClientOptions(nameservers=(name_server.address,)))
    assert plain.send_address("10.0.0.1:10911") == "10.0.0.1:10911"
    vip = ClientInstance(ClientOptions(nameservers=(name_server.address,), vip_channel_enabled=True))
    assert vip.send_address("10.0.0.1:10911") == "10.0.0.1:10909"
