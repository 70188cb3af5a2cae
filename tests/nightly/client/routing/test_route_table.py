"""RouteTable: routes that appear, change and end, and routes that are kept if no name server responds."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.client.routing.route_table import (
    ANXIOUS_SECONDS,
    REFRESH_INTERVAL_SECONDS,
)
from rmqd.errors import NameServerError, RemotingTimeoutError
from rmqd.wire.bodies.route_data import BrokerData, QueueData, TopicRouteData
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply, route_of
from tests.client.routing.test_route_table import ASKED, SLAVE, A, B, Table, remoting, table
from tests.client.running import running

__all__ = ["remoting", "table"]


async def test_an_ordered_topic_has_the_writable_queues_of_its_configuration(table: Table) -> None:
    """orderTopicConf replaces the queue counts for producers only."""
    table.known["T"] = TopicRouteData((QueueData("a", 4, 4, 6),), (BrokerData("c", "a", {0: A}),), "a:2;gone:9")
    await table.refresh("T")
    assert table.writable_queues("T") == [MessageQueue("T", "a", 0), MessageQueue("T", "a", 1)]
    assert len(table.queues("T")) == 4


async def test_an_ordered_topic_keeps_the_order_of_its_configuration(table: Table) -> None:
    """As in Java. A hash must select the same queue in every producer."""
    brokers = (BrokerData("c", "a", {0: A}), BrokerData("c", "b", {0: B}))
    table.known["T"] = TopicRouteData((QueueData("a", 4, 4, 6), QueueData("b", 4, 4, 6)), brokers, "b:1;a:1")
    await table.refresh("T")
    assert table.writable_queues("T") == [MessageQueue("T", "b", 0), MessageQueue("T", "a", 0)]


async def test_the_addresses_of_a_broker_without_a_route_are_kept_for_a_while(
    remoting: RemotingClient, peer: Peer
) -> None:
    """Brokers register one by one with a restarted name server. Listeners are notified of both changes."""
    table = Table(remoting, peer)
    table.known["T"] = route_of({"a": A, "b": {0: B, 1: SLAVE}})
    table.watch("T")
    async with running(table.run()):
        await table.clock.until(lambda: "b" in table.brokers(), "the route is known")
        table.known["T"] = route_of({"a": A})
        await table.clock.until(lambda: "b" not in table.brokers(), "the route has changed")
        assert (table.master("b"), table.address("b", 1)) == (B, SLAVE)
        assert table.broker_addresses() == {A, B, SLAVE}
        await table.clock.until(lambda: table.master("b") is None, "the broker is removed")
    assert table.broker_addresses() == {A}
    assert table.changes == [frozenset({"T"}), frozenset({"T"}), frozenset()]


async def test_routes_without_a_master_are_refreshed_more_often(remoting: RemotingClient, peer: Peer) -> None:
    """A returning master, or the slave that replaces it, must get the group's offsets soon."""
    table = Table(remoting, peer)
    table.known["T"] = route_of({"a": {1: SLAVE}})
    table.watch("T")
    async with running(table.run()):
        await table.clock.advance(3 * ANXIOUS_SECONDS)
        assert len(peer.got(ASKED)) == 4
        table.known["T"] = route_of({"a": {0: A, 1: SLAVE}})
        await table.clock.until(lambda: table.master("a") == A, "the master is known")
        asked = len(peer.got(ASKED))
        await table.clock.advance(REFRESH_INTERVAL_SECONDS / 2)
        assert len(peer.got(ASKED)) == asked


async def test_an_unknown_topic_is_requested_at_a_constant_rate(remoting: RemotingClient, peer: Peer) -> None:
    """It may be created at any moment, even after a long time."""
    table = Table(remoting, peer)
    table.watch("T")
    async with running(table.run()):
        await table.clock.advance(60)
        assert len(peer.got(ASKED)) >= 12, "delays do not double"


async def test_many_errors_cause_one_refresh(remoting: RemotingClient, peer: Peer) -> None:
    """A topic is requested at most once a second, for any number of failed pulls."""
    table = Table(remoting, peer)
    table.known["T"] = route_of({"a": A})
    table.watch("T")
    async with running(table.run()):
        await table.clock.until(lambda: table.queues("T"), "the first route")
        for _ in range(50):
            table.refresh_soon(["T", "not watched"])
            await table.clock.advance(0.01)
        await table.clock.advance(1)
        assert len(peer.got(ASKED)) == 2


async def test_a_refresh_without_response_times_out(table: Table, peer: Peer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmqd.client.routing.route_table.ROUTE_DEADLINE_SECONDS", 1)
    peer.on(ASKED, None)
    refreshing = asyncio.create_task(table.refresh("T"))
    await table.clock.advance(1)
    with pytest.raises(RemotingTimeoutError):
        await refreshing


async def test_an_invalid_response_keeps_the_route(table: Table, peer: Peer) -> None:
    route = table.known["T"] = route_of({"a": A})
    await table.refresh("T")
    peer.on(ASKED, Reply(body=b'{"queueDatas": 7}'))
    with pytest.raises(NameServerError, match="queueDatas"):
        await table.refresh("T")
    assert table.route("T") == route


async def test_the_route_of_a_topic_without_watchers_is_removed(table: Table, peer: Peer) -> None:
    """Two groups share the route of a topic. After the last unwatch its brokers are removed too."""
    table.known["T"] = route_of({"a": A})
    table.watch("T")
    table.watch("T")
    async with running(table.run()):
        await table.clock.until(lambda: table.queues("T"), "the route")
        table.unwatch("T")
        assert table.queues("T")
        table.unwatch("T")
        assert table.queues("T") == []
        assert table.broker_addresses() == frozenset()
        asked = len(peer.got(ASKED))
        await table.clock.advance(3 * REFRESH_INTERVAL_SECONDS)
        assert len(peer.got(ASKED)) == asked
        assert table.route("T") is None
