"""RouteTable: new, changed, retained and removed routes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.name_server_client import NameServers
from rmqd.client.routing.route_table import (
    REFRESH_INTERVAL_SECONDS,
    UNKNOWN_TOPIC_GRACE_SECONDS,
    RouteTable,
)
from rmqd.codes import RequestCode, ResponseCode
from rmqd.errors import NameServerError, RouteNotFoundError
from rmqd.wire.bodies.route_data import BrokerData, QueueData, TopicRouteData
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply, route_of, routes
from tests.client.running import running
from tests.clock import ManualClock

ASKED = RequestCode.GET_ROUTEINFO_BY_TOPIC
A, B, SLAVE = "127.0.0.1:1001", "127.0.0.1:1002", "127.0.0.1:1003"


class Table(RouteTable):
    """A route table with one scripted name server; `known` has its routes, `changes` the reported topics."""

    def __init__(self, remoting: RemotingClient, peer: Peer, **options: float) -> None:
        super().__init__(NameServers(remoting, [peer.address]).get_route, remoting.clock, **options)
        assert isinstance(remoting.clock, ManualClock)
        self.clock = remoting.clock
        self.known: dict[str, TopicRouteData] = {}
        self.changes: list[frozenset[str]] = []
        self.on_change(self.changes.append)
        peer.on(ASKED, routes(self.known))


@pytest.fixture
async def remoting(clock: ManualClock) -> AsyncIterator[RemotingClient]:
    client = RemotingClient(clock=clock)
    yield client
    await client.close()


@pytest.fixture
def table(remoting: RemotingClient, peer: Peer) -> Table:
    return Table(remoting, peer)


async def test_queues_and_addresses(table: Table) -> None:
    """Consumers see the readable queues, producers the writable ones of brokers with a master."""
    table.known["T"] = TopicRouteData(
        (QueueData("b", 1, 2, 6), QueueData("a", 2, 1, 6), QueueData("mute", 4, 4, 2), QueueData("closed", 1, 1, 4)),
        (BrokerData("c", "a", {0: A, 1: SLAVE}), BrokerData("c", "b", {1: B}), BrokerData("c", "mute", {0: "m:1"})),
    )
    await table.refresh("T")
    assert table.queues("T") == [MessageQueue("T", n, q) for n, q in (("a", 0), ("a", 1), ("b", 0), ("closed", 0))]
    # b has no master now, closed no write permission
    mute = [MessageQueue("T", "mute", queue_id) for queue_id in range(4)]
    assert table.writable_queues("T") == [MessageQueue("T", "a", 0), *mute]
    assert (table.master("a"), table.master("b"), table.master("nobody")) == (A, None, None)
    assert (table.address("a", 1), table.address("b"), table.address("a", 7)) == (SLAVE, B, A)
    assert table.address("nobody") is None
    assert table.problems() == ()
    assert table.broker_addresses() == {A, B, SLAVE, "m:1"}
    assert table.queues("unknown") == []
    table.known["%RETRY%g"] = TopicRouteData(
        (QueueData("a", 1, 1, 6), QueueData("closed", 1, 1, 4)), (BrokerData("c", "a", {0: A}),)
    )
    await table.refresh("%RETRY%g")
    assert table.problems() == ("broker closed is read-only, so producers do not use it",)


async def test_watched_topics_follow_the_name_server(table: Table) -> None:
    """A changed route is seen within one interval, and reported once with the topic's name."""
    table.known["T"] = route_of({"a": A})
    table.watch("T")
    async with running(table.run()):
        await table.clock.until(lambda: table.queues("T"), "the first route")
        table.known["T"] = route_of({"a": A, "b": B})
        await table.clock.until(lambda: len(table.queues("T")) == 8, "the second route")
        table.known["T"] = route_of({"a": B})
        await table.clock.until(lambda: table.master("a") == B, "the broker's new address")
        await table.clock.until(lambda: "b" not in table.brokers(), "the other broker is in no route")
    assert table.changes == [frozenset({"T"})] * 3


async def test_known_topics_are_queried_again_soon_if_no_name_server_answered(
    remoting: RemotingClient, peer: Peer
) -> None:
    table = Table(remoting, peer)
    table.known["T"] = route_of({"a": A})
    table.watch("T")
    async with running(table.run()):
        await table.clock.until(lambda: table.master("a") == A, "the route is known")
        await peer.down()
        table.refresh_soon()
        await table.clock.until(lambda: table.problem, "no name server answers")
        assert table.problems() == (table.problem,)
        assert table.master("a") == A
        table.known["T"] = route_of({"a": B})
        await peer.listen()
        await table.clock.until(lambda: table.master("a") == B, "the route is queried again")


async def test_the_same_route_in_another_order_is_not_a_change(table: Table, peer: Peer) -> None:
    """Name servers list brokers in any order, which needs no rebalance."""
    route = route_of({"a": A, "b": B})
    table.known["T"] = route
    table.watch("T")
    async with running(table.run()):
        await table.clock.until(lambda: table.changes, "the first route")
        table.known["T"] = TopicRouteData(route.queue_datas[::-1], route.broker_datas[::-1])
        version = table.version
        await table.clock.advance(3 * REFRESH_INTERVAL_SECONDS)
        assert table.version == version
        table.known["T"] = route_of({"a": A, "b": SLAVE})
        await table.clock.until(lambda: table.version > version, "a changed address")
    assert table.changes == [frozenset({"T"})] * 2


async def test_a_change_of_queues_is_known_everywhere_after_a_refresh_interval(table: Table) -> None:
    """The first route that a client gets is not a change, nor is a new address with the same queues."""
    table.known["T"] = route_of({"a": A}, 2)
    table.watch("T")
    async with running(table.run()):
        await table.clock.until(lambda: table.queues("T"), "the first route")
        table.known["T"] = route_of({"a": B}, 2)
        await table.refresh("T")
        assert table.known_everywhere_at("T") < table.clock.monotonic()
        table.known["T"] = route_of({"a": B}, 3)
        await table.refresh("T")
        assert table.known_everywhere_at("T") == table.clock.monotonic() + REFRESH_INTERVAL_SECONDS
    assert table.known_everywhere_at("not watched") < table.clock.monotonic()


async def test_topics_are_refreshed_together_and_reported_once(table: Table, peer: Peer) -> None:
    """One round queries all topics in parallel, and the callback gets all changes together."""
    topics = [f"T{i}" for i in range(20)]
    table.known.update(dict.fromkeys(topics, route_of({"a": A})))
    answers = routes(table.known)
    all_there = asyncio.Event()

    async def together(command: RemotingCommand) -> Reply:
        if len(peer.got(ASKED)) == len(topics):
            all_there.set()
        await all_there.wait()
        return answers(command)

    peer.on(ASKED, together)
    for topic in topics:
        table.watch(topic)
    async with running(table.run()):
        await table.clock.until(lambda: table.changes, "the routes")
    assert table.changes == [frozenset(topics)]


async def test_the_last_route_is_kept_while_no_name_server_answers(table: Table, peer: Peer) -> None:
    """Consumption continues during a name server's restart, and later route changes are seen."""
    table.known["T"] = route_of({"a": A})
    table.watch("T")
    async with running(table.run()):
        await table.clock.until(lambda: table.queues("T"), "the first route")
        await peer.down()
        with pytest.raises(NameServerError):
            await table.refresh("T")
        assert len(table.queues("T")) == 4
        table.known["T"] = route_of({"a": A, "b": B})
        await peer.listen()
        await table.clock.until(lambda: len(table.queues("T")) == 8, "the route after the restart")


async def test_a_name_server_that_has_just_started_removes_no_route(remoting: RemotingClient, peer: Peer) -> None:
    """It knows no topic until the brokers have registered. Only a topic that stays unknown is removed."""
    table = Table(remoting, peer)
    route = table.known["T"] = route_of({"a": A})
    table.watch("T")
    async with running(table.run()):
        await table.clock.until(lambda: table.queues("T"), "the first route")
        del table.known["T"]
        await table.clock.advance(UNKNOWN_TOPIC_GRACE_SECONDS - 5)
        assert table.route("T") == route
        await table.clock.until(lambda: table.route("T") is None, "a topic that stays unknown is dropped")
        assert table.queues("T") == []
        assert table.changes[:2] == [frozenset({"T"})] * 2


async def test_a_missing_topic_and_a_missing_name_server_raise_different_errors(table: Table, peer: Peer) -> None:
    with pytest.raises(RouteNotFoundError) as raised:
        await table.refresh("T")
    assert raised.value.topic == "T"
    await peer.down()
    with pytest.raises(NameServerError):
        await table.refresh("T")


async def test_a_topic_that_is_created_later_is_found_soon(remoting: RemotingClient, peer: Peer) -> None:
    """Unknown topics are queried at shorter intervals, because a new group's retry topic will be created soon."""
    table = Table(remoting, peer)
    table.watch("T")
    async with running(table.run()):
        await peer.received(ASKED)
        table.known["T"] = route_of({"a": A})
        await table.clock.until(lambda: table.queues("T"), "the new topic's route")


async def test_a_refresh_is_never_answered_by_an_earlier_request(table: Table, peer: Peer) -> None:
    """A refresh in progress may return the route from before a change of the topic."""
    table.known["T"] = route_of({"a": A})
    release = asyncio.Event()
    answers = routes(table.known)

    async def slow(reply: Reply) -> Reply:
        await release.wait()
        return reply

    peer.on(ASKED, lambda command: slow(answers(command)))
    first = asyncio.create_task(table.refresh("T"))
    await peer.received(ASKED)
    table.known["T"] = route_of({"b": B})
    second = asyncio.create_task(table.refresh("T"))
    await asyncio.sleep(0)
    release.set()
    assert (await first).broker_datas[0].broker_name == "a"
    assert (await second).broker_datas[0].broker_name == "b"


async def test_lookup_queries_only_unknown_topics(table: Table, peer: Peer) -> None:
    """Producers look up the route before each message, so a lookup must cost nothing."""
    table.known["T"] = route_of({"a": A})
    for _ in range(3):
        assert await table.lookup("T") == table.known["T"]
    assert len(peer.got(ASKED)) == 1
    peer.on(ASKED, Reply(ResponseCode.TOPIC_NOT_EXIST))
    with pytest.raises(RouteNotFoundError):
        await table.lookup("other")
