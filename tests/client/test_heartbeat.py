"""Heartbeats: to every address, in parallel, again and again, and at once when it matters."""

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
    """A client's heartbeat, the routes that it goes by, and the groups that it names."""

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


async def test_every_address_is_told_every_group(world: World, peer: Peer, other: Peer) -> None:
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
    """A client that consumes nothing is no member of anything."""
    world.members.clear()
    await world.know(peer)
    async with running(world.heartbeat.run()):
        assert await world.heartbeat.send_heartbeats() == {}
        world.members.append(Member("g", "T"))
        world.heartbeat.send_heartbeats_soon()
        await peer.received(HEART_BEAT)
    assert len(peer.got(HEART_BEAT)) == 1


async def test_it_is_repeated(world: World, peer: Peer) -> None:
    """Brokers forget a client that is silent for two minutes."""
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await world.clock.advance(4 * INTERVAL_SECONDS - 1)
    assert len(peer.got(HEART_BEAT)) == 4


async def test_a_new_broker_is_told_at_once(world: World, peer: Peer, other: Peer) -> None:
    """A route change brings its heartbeat with it; a broker that left gets no more."""
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await peer.received(HEART_BEAT)
        await world.know(other)
        await eventually(lambda: world.heartbeat.brokers_up == {other.address: True}, "the new broker is up")
        world.heartbeat.send_heartbeats_soon()
        await other.received(HEART_BEAT, 2)
    assert len(peer.got(HEART_BEAT)) == 1


async def test_a_silent_broker_delays_no_other(world: World, peer: Peer, other: Peer) -> None:
    """Each has its own deadline: the one that answers is told again and again meanwhile."""
    peer.on(HEART_BEAT, None)
    await world.know(peer, other)
    async with running(world.heartbeat.run()):
        for count in range(1, 6):
            await other.received(HEART_BEAT, count)
            world.heartbeat.send_heartbeats_soon(other.address)


async def test_a_silent_broker_is_down_after_its_deadline(world: World, peer: Peer, other: Peer) -> None:
    """And the others are up."""
    peer.on(HEART_BEAT, None)
    await world.know(peer, other)
    beating = asyncio.create_task(world.heartbeat.send_heartbeats())
    await world.clock.until(beating.done, "all have answered, or their time is over")
    result = await beating
    assert isinstance(result[peer.address], RemotingTimeoutError)
    assert result[other.address] is None
    assert world.heartbeat.brokers_up == {peer.address: False, other.address: True}


async def test_a_broker_that_refuses_is_down_with_its_reason(world: World, peer: Peer) -> None:
    """An error code is a failure like no answer, and the caller of `send_heartbeat_to` gets it."""
    peer.on(HEART_BEAT, Reply(ResponseCode.SYSTEM_BUSY, "start flow control"))
    await world.know(peer)
    with pytest.raises(SystemBusyError, match="flow control"):
        await world.heartbeat.send_heartbeat_to(peer.address)
    assert world.heartbeat.brokers_up == {peer.address: False}


async def test_a_broker_that_restarts_knows_us_again_soon(world: World, peer: Peer) -> None:
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
    """The broker forgot us with the connection: a group without pulls would stay forgotten for 30 s."""
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await peer.received(HEART_BEAT)
        peer.cut()
        await peer.received(HEART_BEAT, 2)
        assert peer.connections == 2


async def test_a_connection_that_another_request_opens_is_followed_by_a_heartbeat(world: World, peer: Peer) -> None:
    """Whoever reconnects first, the broker must hear of the groups before it refuses their pulls."""
    world.members.clear()
    await world.know(peer)
    async with running(world.heartbeat.run()):
        await eventually(lambda: len(asyncio.all_tasks()) >= 3, "the broker has its task")
        world.members.append(Member("g", "T"))
        await world.remoting.invoke(peer.address, RequestCode.GET_MAX_OFFSET, {})
        await peer.received(HEART_BEAT)


async def test_a_failure_asks_for_fresh_routes(world: World, peer: Peer) -> None:
    """The broker may have moved: its new address must not wait for the next interval."""
    world.routes.watch("T")
    await world.know(peer)
    async with running(world.heartbeat.run()), running(world.routes.run()):
        await peer.received(HEART_BEAT)
        asked = world.asked_for_routes
        await peer.down()
        await world.clock.until(lambda: world.asked_for_routes > asked, "the routes are asked for again", most=5)


async def test_a_broker_that_is_back_asks_for_fresh_routes(world: World, peer: Peer) -> None:
    """Routes that were asked for while it was away do not have it: until they do, members divide queues otherwise."""
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


async def test_a_broker_that_was_found_silent_is_asked_at_once(world: World, peer: Peer) -> None:
    """By whatever request: it is down from then on, and an answer to the heartbeat brings it up again."""
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


async def test_a_connection_is_known_to_have_carried_a_heartbeat(world: World, peer: Peer) -> None:
    """A broker knows a client by its connection: what goes by another one finds no group there."""
    await world.know(peer)
    first = await world.remoting.connection(peer.address)
    assert not world.heartbeat.is_known_on(first)
    await world.heartbeat.send_heartbeat_to(peer.address)
    assert world.heartbeat.is_known_on(first)
    peer.cut()
    await eventually(lambda: world.remoting.connected(peer.address) is None, "it is lost")
    assert not world.heartbeat.is_known_on(await world.remoting.connection(peer.address))


async def test_pulls_that_get_no_answer_are_followed_by_a_heartbeat(world: World, peer: Peer) -> None:
    """Brokers hold pulls for long, and nothing else may be sent for half a minute: a line that is silent is found."""
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
