"""`rmqd lag`: messages and ages from the brokers' responses, without a trace at the brokers."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqd import MessageQueue
from rmqd.client.brokers import Brokers
from rmqd.client.client_options import ClientOptions
from rmqd.client.group_reader import GroupReader, TopicLag
from rmqd.client.instance import ClientInstance
from rmqd.codes import RequestCode, ResponseCode
from rmqd.runtime.clock import SystemClock
from rmqd.runtime.plain_text import duration
from rmqd.wire.bodies.group_bodies import QueryConsumeTimeSpanBody, QueueTimeSpan
from rmqd.wire.bodies.route_data import BrokerData, QueueData, TopicRouteData
from rmqd.wire.bodies.stats_bodies import TopicOffset, TopicStatsTable
from rmqd.wire.command import RemotingCommand
from tests.client.peer import Peer, Reply

QUEUE = MessageQueue("orders", "broker-a", 0)
NOW_MS = 1_800_000_000_000


class StoppedClock(SystemClock):
    """A clock that always shows NOW_MS."""

    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return NOW_MS / 1000


async def measure(*, committed: int | None, ends: TopicOffset, delay_ms: int) -> tuple[TopicLag, Peer]:
    """The lag of a queue with these offsets, and the peer that was both name server and broker."""
    span = QueueTimeSpan(QUEUE, NOW_MS - 60_000, NOW_MS - 1_000, 0, delay_ms)
    async with Peer() as peer:
        route = TopicRouteData(
            (QueueData("broker-a", 1, 1, 6),), (BrokerData("DefaultCluster", "broker-a", {0: peer.address}),)
        )
        peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Reply(body=route.to_json()))
        peer.on(RequestCode.GET_TOPIC_STATS_INFO, Reply(body=TopicStatsTable({QUEUE: ends}).to_json()))
        peer.on(RequestCode.QUERY_CONSUME_TIME_SPAN, Reply(body=QueryConsumeTimeSpanBody((span,)).to_json()))
        peer.on(RequestCode.QUERY_CONSUMER_OFFSET, _offset_answer(committed))
        client = ClientInstance(ClientOptions(nameservers=(peer.address,)), clock=StoppedClock())
        try:
            return await GroupReader(Brokers(client), "mailer").lag("orders"), peer
        finally:
            await client.remoting.close()


def _offset_answer(committed: int | None) -> Callable[[RemotingCommand], Reply]:
    def answer(request: RemotingCommand) -> Reply:
        assert request.ext_fields["setZeroIfNotFound"] == "false"
        if committed is None:
            return Reply(code=ResponseCode.QUERY_NOT_FOUND, remark="Not found")
        return Reply(ext_fields={"offset": str(committed)})

    return answer


@pytest.mark.parametrize(
    ("committed", "ends", "delay_ms", "lag", "lag_seconds"),
    [
        (70, TopicOffset(0, 100), 12_345, 30, 12.345),
        (100, TopicOffset(0, 100), 0, 0, 0.0),
        (0, TopicOffset(0, 0), 0, 0, 0.0),
        # never committed: all messages wait, as old as the oldest; the broker's delay is for offset -1
        (None, TopicOffset(40, 100), NOW_MS + 1, 60, 60.0),
        (None, TopicOffset(0, 0), NOW_MS + 1, 0, 0.0),
        # messages that retention deleted do not wait
        (10, TopicOffset(40, 100), NOW_MS + 1, 60, 60.0),
        # reset beyond the end
        (150, TopicOffset(0, 100), 0, 0, 0.0),
        # the broker's clock is behind its own messages
        (70, TopicOffset(0, 100), -50, 30, 0.0),
    ],
)
async def test_lag_in_messages_and_in_seconds(
    committed: int | None, ends: TopicOffset, delay_ms: int, lag: int, lag_seconds: float
) -> None:
    found, _ = await measure(committed=committed, ends=ends, delay_ms=delay_ms)

    assert (found.lag, found.lag_seconds) == (lag, lag_seconds)
    assert [queue.committed for queue in found.queues] == [committed]


async def test_lag_neither_pulls_messages_nor_joins_the_group() -> None:
    _, peer = await measure(committed=5, ends=TopicOffset(0, 10), delay_ms=7)

    assert {RequestCode(request.code) for request in peer.requests} == {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_CONSUMER_OFFSET,
    }


def test_durations_are_formatted_for_people() -> None:
    texts = {0: "0 s", 0.00002: "1 ms", 0.00747828: "7 ms", 0.5: "500 ms", 1: "1 s", 2.54: "2.5 s", 15.3: "15 s"}
    texts |= {119: "119 s", 150: "150 s", 900: "15 min", 3600: "60 min", 7200: "2 h", 273_600: "3.2 d"}
    assert {seconds: duration(seconds) for seconds in texts} == texts
