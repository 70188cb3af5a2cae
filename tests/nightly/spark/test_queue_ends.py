"""The ends of queues: one request for all queues of a topic on a broker, or one for each queue if that one fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.codes import RequestCode, ResponseCode
from rmqd.spark.session.queue_queries import MasterMissingError
from rmqd.spark.session.spark_access import ClientAccess
from rmqd.spark.session.spark_cluster import cluster_of
from rmqd.wire.bodies.route_data import TopicRouteData
from rmqd.wire.bodies.stats_bodies import TopicOffset, TopicStatsTable
from rmqd.wire.command import RemotingCommand
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Peer, Reply, route_of, routes

TOPIC, BROKER = "orders", "a"
QUEUES = [MessageQueue(TOPIC, BROKER, number) for number in range(3)]
TOGETHER, SINGLY = RequestCode.GET_TOPIC_STATS_INFO, (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)


class Broker:
    """A name server, and a broker whose queue N has the messages from N to before 10 + N."""

    def __init__(self, name_server: Peer, broker: Peer) -> None:
        self.by_topic: dict[str, TopicRouteData] = {}
        name_server.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, routes(self.by_topic))
        self.peer = broker
        self.cluster = cluster_of(ClientAccess(ClientOptions(nameservers=(name_server.address,))))
        self.is_known_as(0)
        self.tells_of(QUEUES)
        broker.on(SINGLY[0], lambda request: Reply(ext_fields={"offset": str(_queue_id(request))}))
        broker.on(SINGLY[1], lambda request: Reply(ext_fields={"offset": str(10 + _queue_id(request))}))

    def is_known_as(self, broker_id: int) -> None:
        """Let the name server return it with this id alone."""
        self.by_topic[TOPIC] = route_of({BROKER: {broker_id: self.peer.address}}, len(QUEUES))

    def tells_of(self, queues: list[MessageQueue]) -> None:
        """Let it respond for the topic, with these queues."""
        table = {queue: TopicOffset(queue.queue_id, 10 + queue.queue_id) for queue in queues}
        self.peer.on(TOGETHER, Reply(body=TopicStatsTable(table).to_json()))

    async def ends(self, *, of_slaves: bool = False) -> list[int]:
        """Return the end offsets, with the cluster's client."""
        answers = await asyncio.to_thread(self.cluster.max_offsets, QUEUES, of_slaves=of_slaves)
        for error in answers.errors.values():
            raise error
        return [answers.values[queue] for queue in QUEUES]

    async def starts(self) -> list[int]:
        """Return the start offsets."""
        answers = await asyncio.to_thread(self.cluster.min_offsets, QUEUES)
        return [answers.values[queue] for queue in QUEUES]

    def asked(self) -> tuple[int, int]:
        """The number of requests about the topic, and about queues."""
        return len(self.peer.got(TOGETHER)), sum(len(self.peer.got(code)) for code in SINGLY)


def _queue_id(request: RemotingCommand) -> int:
    return int((request.ext_fields or {})["queueId"])


@pytest.fixture
async def broker() -> AsyncIterator[Broker]:
    """A running broker."""
    async with AsyncExitStack() as ending:
        yield Broker(*[await ending.enter_async_context(Peer()) for _ in range(2)])


async def test_one_request_for_each_end_covers_all_queues_of_a_topic(broker: Broker) -> None:
    assert await broker.starts() == [0, 1, 2]
    assert await broker.ends() == [10, 11, 12]
    assert broker.asked() == (2, 0)


@pytest.mark.parametrize("code", [ResponseCode.NO_PERMISSION, ResponseCode.REQUEST_CODE_NOT_SUPPORTED])
async def test_a_broker_that_refuses_is_queried_for_each_queue(broker: Broker, code: ResponseCode) -> None:
    """The next polls do not try the topic again."""
    broker.peer.on(TOGETHER, Reply(code, "not you"))
    for _ in range(3):
        assert await broker.ends() == [10, 11, 12]
    assert broker.asked() == (1, 9)


async def test_a_queue_that_is_missing_in_the_response_is_queried(broker: Broker) -> None:
    """The broker may use another name in its response."""
    broker.tells_of(QUEUES[:2])
    assert await broker.ends() == [10, 11, 12]
    assert broker.asked() == (1, 1)


async def test_only_a_master_is_queried_for_a_topic(broker: Broker) -> None:
    """A slave's response for a queue counts only if a stream can continue with it."""
    broker.is_known_as(1)
    assert await broker.ends(of_slaves=True) == [10, 11, 12]
    with pytest.raises(MasterMissingError):
        await broker.ends()
    assert broker.asked() == (0, 3)
