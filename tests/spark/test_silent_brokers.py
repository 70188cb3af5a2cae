"""Streams with an unresponsive broker among others, or with an unreachable master."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply, route_of, routes
from tests.consumer.scripted_broker import ScriptedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.errors import RmqdError  # noqa: E402
from tests.spark.micro_batches import Checkpoint, Query  # noqa: E402

TOPIC, GROUP = "orders", "reports"
PATIENT = {"startingOffsets": "earliest", "fetchOffset.intervalMs": "0", "routeRefreshMs": "0"}


class Cluster:
    """A name server, and two brokers `a` and `b` with a queue each."""

    def __init__(self, name_server: Peer, a: Peer, b: Peer) -> None:
        self.by_topic: dict[str, TopicRouteData] = {}
        self.name_server = name_server
        self.peers = {"a": a, "b": b}
        self.brokers = {name: ScriptedBroker(peer, name) for name, peer in self.peers.items()}
        for broker in self.brokers.values():
            broker.create_topic(TOPIC)
        name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes(self.by_topic))
        self.know({name: {0: peer.address} for name, peer in self.peers.items()})

    def know(self, replicas: dict[str, dict[int, str]]) -> None:
        """Let the name server return these replicas."""
        self.by_topic[TOPIC] = route_of(replicas, 1)

    def have_group(self) -> None:
        """Make the group known to the brokers."""
        for peer in self.peers.values():
            peer.on(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, Reply(body=json.dumps({"groupName": GROUP}).encode()))

    async def store(self, name: str, *bodies: bytes) -> None:
        """Put messages into a broker's queue."""
        await self.brokers[name].store(MessageQueue(TOPIC, name, 0), *bodies)

    async def query(self, checkpoint: Checkpoint | None = None, **more: str) -> Query:
        """A stream that starts at the first messages."""
        return await asyncio.to_thread(Query, checkpoint or Checkpoint(), self._options(more))

    async def available_now(self, checkpoint: Checkpoint | None = None, **more: str) -> Query:
        """The same stream, up to the current ends."""
        options = self._options(more)
        return await asyncio.to_thread(Query, checkpoint or Checkpoint(), options, available_now=True)

    def _options(self, more: dict[str, str]) -> dict[str, str]:
        return {"nameserver": self.name_server.address, "subscribe": TOPIC, **PATIENT, **more}


@pytest.fixture
async def cluster() -> AsyncIterator[Cluster]:
    """A running cluster."""
    async with AsyncExitStack() as ending:
        peers = [await ending.enter_async_context(Peer()) for _ in range(3)]
        yield Cluster(*peers)


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """The log entries of a test."""
    with capture_logs() as logs:
        yield logs


def events(logs: list[Any], name: str) -> list[tuple[str, object]]:
    return [(entry["broker"], entry.get("queues")) for entry in logs if entry["event"] == name]


async def test_an_unresponsive_broker_is_reported(cluster: Cluster, logs: list[Any]) -> None:
    """The report is logged once. Other brokers' queues continue, and its own when it responds again."""
    query = await cluster.query(unavailableToleranceMs="60000")
    await asyncio.to_thread(query.poll)
    await cluster.peers["b"].down()
    for body in (b"1", b"2"):
        await cluster.store("a", body)
        assert await asyncio.to_thread(query.poll)
    assert query.rows == [[], ["1"], ["2"]]
    assert events(logs, "spark.broker_silent") == [("b", {TOPIC: [0]})]
    await cluster.peers["b"].listen()
    await cluster.store("b", b"3")
    async with asyncio.timeout(20):
        while not await asyncio.to_thread(query.poll):
            pass
    assert query.rows[3:] == [["3"]]
    assert events(logs, "spark.broker_returned") == [("b", None)]


@pytest.mark.parametrize("request_code", [RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET])
async def test_a_commit_refused_by_one_broker_does_not_block_others(
    cluster: Cluster, logs: list[Any], request_code: RequestCode
) -> None:
    """Other brokers get their commits. The refused one is logged once, and repeated until it is accepted."""
    cluster.have_group()
    for name in cluster.brokers:
        await cluster.store(name, b"1", b"2")
    query = await cluster.query(groupId=GROUP, commitOffsets="true", unavailableToleranceMs="0")
    await asyncio.to_thread(query.poll)
    refused = Reply(ResponseCode.SYSTEM_BUSY, "as it is scripted")
    peer = cluster.peers["a"]
    peer.gate = lambda command: refused if command.code == request_code else None
    for _ in range(3):
        await asyncio.to_thread(query.poll)
    commits = {name: broker.commits_of(MessageQueue(TOPIC, name, 0)) for name, broker in cluster.brokers.items()}
    assert commits == {"a": [0], "b": [0, 2]}
    [told] = [entry for entry in logs if entry["event"] == "spark.not_committed"]
    assert "as it is scripted" in told["error"]
    peer.gate = None
    await asyncio.to_thread(query.poll)
    assert cluster.brokers["a"].commits_of(MessageQueue(TOPIC, "a", 0)) == [0, 2]


async def test_a_bounded_query_ends_at_the_masters_end(cluster: Cluster) -> None:
    """A slave may be behind, and messages beyond its end would stay unread."""
    await cluster.store("a", *(b"%d" % number for number in range(5)))
    slave, master = cluster.peers["b"], cluster.peers["a"].address
    slave.on(RequestCode.GET_MAX_OFFSET, Reply(ext_fields={"offset": "2"}))
    cluster.know({"a": {1: slave.address}})
    with pytest.raises(RmqdError, match="a: no name server has a route to its master"):
        await cluster.available_now(unavailableToleranceMs="0")
    cluster.know({"a": {0: master, 1: slave.address}})
    query = await cluster.available_now(unavailableToleranceMs="20000")
    assert await asyncio.to_thread(query.run_until_idle) == [["0", "1", "2", "3", "4"]]
