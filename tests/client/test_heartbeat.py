"""Heartbeats: to every address, in parallel, at intervals, and at once after changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmqd.client.heartbeat import Heartbeat
from rmqd.client.remoting.remoting_client import REQUEST_TIMEOUT_SECONDS, RemotingClient
from rmqd.client.routing.route_table import REFRESH_GAP_SECONDS, RouteTable
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import ConnectionRenewedError, RemotingTimeoutError, RouteNotFoundError
from rmqd.errors.broker_errors import SystemBusyError
from rmqd.wire.bodies.heartbeat_data import HeartbeatData
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.command import encode_request
from tests.client.members import Member
from tests.client.peer import Peer, Reply, route_of
from tests.client.remoting.silent_line import SilentLine
from tests.client.running import running
from tests.clock import ManualClock
from tests.waiting import eventually

HEART_BEAT = RequestCode.HEART_BEAT
INTERVAL_SECONDS = 30.0


class World:
    """A client's heartbeat with its routes and groups."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.route: TopicRouteData | None = None
        self.asked_for_routes = 0
        self.members: list[Member] = [Member("g", "T")]
        self.remoting = RemotingClient(clock=clock)
        self.routes = RouteTable(self._route_of, clock)
        self.heartbeat = Heartbeat(
            self.remoting,
            self.routes,
            "me@1",
            lambda: self.members,
            interval_seconds=INTERVAL_SECONDS,
        )

    async def know(self, *peers: Peer) -> None:
        """Learn a route with these brokers, each with one address."""
        self.route = route_of({f"broker-{index}": peer.address for index, peer in enumerate(peers)})
        await self.routes.refresh("T")

    async def _route_of(self, topic: str) -> TopicRouteData:
        self.asked_for_routes += 1
        if self.route is None:
            raise RouteNotFoundError(topic)
        return self.route


@pytest.fixture
async def world(clock: ManualClock) -> AsyncIterator[World]:
    world = World(clock)
    yield world
    await world.remoting.close()


@pytest.fixture
async def other() -> AsyncIterator[Peer]:
    async with Peer() as peer:
        yield peer


async def test_every_broker_address_gets_every_group(world: World, peer: Peer, other: Peer) -> None:
    """Master and slave both get the client's id and all groups with their subscriptions."""
    world.members.append(Member("h", "U"))
    world.route = route_of({"a": {0: peer.address, 1: other.address}})
    await world.routes.refresh("T")
    assert await world.heartbeat.send_heartbeats() == {peer.address: None, other.address: None}
    for broker in (peer, other):
        (request,) = broker.got(HEART_BEAT)
        data = HeartbeatData.from_json(request.body)
        assert data.client_id == "me@1"
        assert [group.group_name for group in data.consumer_data_set] == ["g", "h"]
        assert data.consumer_data_set[1].subscription_data_set[0].topic == "U"
    assert world.heartbeat.brokers_up == {peer.address: True, other.address: True}


async def test_nothing_is_sent_without_a_group(world: World, peer: Peer) -> None:
    """A client without groups has nothing to register."""
    world.members.clear()
    await world.know(peer)
    async with running(world.heartbeat.run()):
        assert await world.heartbeat.send_heartbeats() == {}
        world.members.append(Member("g", "T"))
        world.heartbeat.send_heartbeats_soon()
        await peer.received(HEART_BEAT)
    assert len(peer.got(HEART_BEAT)) == 1


async def test_heartbeats_are_repeated(world: World, peer: Peer) -> None:
    """Brokers forget a client that is silent for two minutes."""
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await world.clock.advance(4 * INTERVAL_SECONDS - 1)
    assert len(peer.got(HEART_BEAT)) == 4


async def test_a_new_broker_gets_a_heartbeat_at_once(world: World, peer: Peer, other: Peer) -> None:
    """A route change triggers it. A broker that left the route gets no more heartbeats."""
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await peer.received(HEART_BEAT)
        await world.know(other)
        await eventually(lambda: world.heartbeat.brokers_up == {other.address: True}, "the new broker is up")
        world.heartbeat.send_heartbeats_soon()
        await other.received(HEART_BEAT, 2)
    assert len(peer.got(HEART_BEAT)) == 1


async def test_a_silent_broker_does_not_delay_other_heartbeats(world: World, peer: Peer, other: Peer) -> None:
    """Each broker has its own deadline."""
    peer.on(HEART_BEAT, None)
    await world.know(peer, other)
    async with running(world.heartbeat.run()):
        for count in range(1, 6):
            await other.received(HEART_BEAT, count)
            world.heartbeat.send_heartbeats_soon(other.address)


async def test_a_silent_broker_is_down_after_its_deadline(world: World, peer: Peer, other: Peer) -> None:
    """The other broker is up."""
    peer.on(HEART_BEAT, None)
    await world.know(peer, other)
    beating = asyncio.create_task(world.heartbeat.send_heartbeats())
    await world.clock.until(beating.done, "all requests have ended")
    result = await beating
    assert isinstance(result[peer.address], RemotingTimeoutError)
    assert result[other.address] is None
    assert world.heartbeat.brokers_up == {peer.address: False, other.address: True}


async def test_a_broker_that_refuses_a_heartbeat_is_down(world: World, peer: Peer) -> None:
    """An error code is a failure like a timeout. `send_heartbeat_to` raises it."""
    peer.on(HEART_BEAT, Reply(ResponseCode.SYSTEM_BUSY, "start flow control"))
    await world.know(peer)
    with pytest.raises(SystemBusyError, match="flow control"):
        await world.heartbeat.send_heartbeat_to(peer.address)
    assert world.heartbeat.brokers_up == {peer.address: False}


async def test_a_restarted_broker_gets_a_heartbeat_soon(world: World, peer: Peer) -> None:
    """The heartbeat is repeated until the broker is back, long before the interval is over."""
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await peer.received(HEART_BEAT)
        await peer.down()
        await eventually(lambda: world.heartbeat.brokers_up == {peer.address: False}, "the broker is seen to be down")
        await peer.listen()
        await world.clock.until(
            lambda: world.heartbeat.brokers_up == {peer.address: True}, "the broker is up again", INTERVAL_SECONDS / 2
        )
        assert len(peer.got(HEART_BEAT)) == 2


async def test_a_cut_connection_is_followed_by_a_heartbeat(world: World, peer: Peer) -> None:
    """The broker removed the client with its connection. A group without pulls would be missing for 30 s."""
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await peer.received(HEART_BEAT)
        peer.cut()
        await peer.received(HEART_BEAT, 2)
        assert peer.connections == 2


async def test_a_connection_opened_by_another_request_is_followed_by_a_heartbeat(world: World, peer: Peer) -> None:
    """The broker refuses pulls of groups that it does not know."""
    world.members.clear()
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await eventually(lambda: len(asyncio.all_tasks()) >= 3, "the broker has its task")
        world.members.append(Member("g", "T"))
        await world.remoting.invoke(peer.address, RequestCode.GET_MAX_OFFSET, {})
        await peer.received(HEART_BEAT)


async def test_a_failed_heartbeat_refreshes_the_routes(world: World, peer: Peer) -> None:
    """The broker may have moved: its new address must not wait for the next interval."""
    world.routes.watch("T")
    await world.know(peer)
    async with running(world.heartbeat.run()), running(world.routes.run()):
        await peer.received(HEART_BEAT)
        asked = world.asked_for_routes
        await peer.down()
        await world.clock.until(lambda: world.asked_for_routes > asked, "the routes are asked for again", most=5)


async def test_a_recovered_broker_refreshes_the_routes(world: World, peer: Peer) -> None:
    """Routes from its downtime lack the broker, and members with such routes allocate the queues differently."""
    world.routes.watch("T")
    await world.know(peer)
    async with running(world.heartbeat.run()), running(world.routes.run()):
        await peer.received(HEART_BEAT)
        peer.on(HEART_BEAT, Reply(ResponseCode.SYSTEM_ERROR, "broken"))
        await world.heartbeat.send_heartbeats()
        await world.clock.advance(REFRESH_GAP_SECONDS)
        asked = world.asked_for_routes
        peer.on(HEART_BEAT, Reply())
        await world.heartbeat.send_heartbeats()
        await world.clock.until(lambda: world.asked_for_routes > asked, "the routes are asked for again", most=2)


async def test_a_broker_that_did_not_answer_a_request_gets_a_heartbeat_soon(world: World, peer: Peer) -> None:
    """The broker is down after the timeout of any request, and up again after its answer to a heartbeat."""
    await world.know(peer)
    peer.on(RequestCode.GET_MAX_OFFSET, None)
    async with running(world.heartbeat.run()):
        await peer.received(HEART_BEAT)
        await eventually(lambda: world.heartbeat.brokers_up == {peer.address: True}, "it is up")
        peer.on(HEART_BEAT, None)
        asking = asyncio.create_task(world.remoting.invoke(peer.address, RequestCode.GET_MAX_OFFSET, {}))
        await world.clock.advance(REQUEST_TIMEOUT_SECONDS)
        with pytest.raises(RemotingTimeoutError):
            await asking
        assert world.heartbeat.brokers_up == {peer.address: False}
        await world.clock.until(lambda: len(peer.got(HEART_BEAT)) == 2, "it is asked", INTERVAL_SECONDS / 2)
        peer.on(HEART_BEAT, Reply())
        await peer.push(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, {}, oneway=True)
        await world.clock.until(
            lambda: world.heartbeat.brokers_up == {peer.address: True}, "it is up again", INTERVAL_SECONDS / 2
        )


async def test_is_known_on_is_true_for_connections_that_carried_a_heartbeat(world: World, peer: Peer) -> None:
    """A broker knows a client by its connection, so requests on another connection find no group."""
    await world.know(peer)
    first = await world.remoting.connection(peer.address)
    assert not world.heartbeat.is_known_on(first)
    await world.heartbeat.send_heartbeat_to(peer.address)
    assert world.heartbeat.is_known_on(first)
    peer.cut()
    await eventually(lambda: world.remoting.connected(peer.address) is None, "the connection is lost")
    assert not world.heartbeat.is_known_on(await world.remoting.connection(peer.address))


async def test_unanswered_pulls_are_followed_by_a_heartbeat(world: World, peer: Peer) -> None:
    """Brokers hold pulls, and nothing else may be sent for 30 s, so only a heartbeat finds a silent connection."""
    pull = RequestCode.PULL_MESSAGE
    async with SilentLine(peer.port) as line:
        world.route = route_of({"a": line.address})
        await world.routes.refresh("T")
        async with running(world.heartbeat.run()):
            await eventually(lambda: world.heartbeat.brokers_up == {line.address: True}, "the broker is up")
            connection = world.remoting.connected(line.address)
            assert connection is not None
            line.swallow()
            waiting = connection.call(pull, 1, encode_request(pull, 1, {}), 3600)
            await world.clock.until(waiting.done, "it is to be asked anew", INTERVAL_SECONDS)
            with pytest.raises(ConnectionRenewedError):
                await waiting
            renewed = world.remoting.connected(line.address)
            assert renewed is not None
            assert world.heartbeat.is_known_on(renewed)
            assert line.accepted == 2
