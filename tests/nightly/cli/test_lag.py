"""`rmqd lag`: from the brokers' answers to messages, ages and exit codes; and it leaves no trace at the brokers."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from rmqd import MessageQueue
from rmqd.cli.lag import format_age
from rmqd.client.api.group import update_subscription_group
from rmqd.client.api.offset import update_consumer_offset
from rmqd.client.group_lag import LagReader, TopicLag
from rmqd.client.instance import ClientInstance
from rmqd.client.options import ClientOptions
from rmqd.client.remoting.client import RemotingClient
from rmqd.clock import SystemClock
from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.bodies.route import BrokerData, QueueData, TopicRouteData
from rmqd.wire.bodies.settings import SubscriptionGroupConfig
from rmqd.wire.bodies.stats import TopicOffset, TopicStatsTable
from rmqd.wire.bodies.time_span import QueryConsumeTimeSpanBody, QueueTimeSpan
from rmqd.wire.command import RemotingCommand
from tests.cli.command import rmqd
from tests.client.peer import Peer, Reply
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until

QUEUE = MessageQueue("orders", "broker-a", 0)
NOW_MS = 1_800_000_000_000


class StoppedClock(SystemClock):
    """It is always NOW_MS."""

    def monotonic(self) -> float:
        return 0.0

    def wall(self) -> float:
        return NOW_MS / 1000


async def measure(*, committed: int | None, ends: TopicOffset, delay_ms: int) -> tuple[TopicLag, Peer]:
    """What a queue with these offsets is reported as, and the name server and broker that was asked."""
    span = QueueTimeSpan(QUEUE, NOW_MS - 60_000, NOW_MS - 1_000, 0, delay_ms)
    async with Peer() as peer:
        route = TopicRouteData(
            (QueueData("broker-a", 1, 1, 6),), (BrokerData("DefaultCluster", "broker-a", {0: peer.address}),)
        )
        peer.on(RequestCode.GET_ROUTEINFO_BY_TOPIC, Reply(body=route.to_json()))
        peer.on(RequestCode.GET_TOPIC_STATS_INFO, Reply(body=TopicStatsTable({QUEUE: ends}).to_json()))
        peer.on(RequestCode.QUERY_CONSUME_TIME_SPAN, Reply(body=QueryConsumeTimeSpanBody((span,)).to_json()))
        peer.on(RequestCode.QUERY_CONSUMER_OFFSET, _offset_answer(committed))
        client = ClientInstance(ClientOptions(nameservers=(peer.address,)))
        try:
            return await LagReader(client, StoppedClock()).topic_lag("mailer", "orders"), peer
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
        # never committed: all that the queue holds, as old as its oldest; the broker's delay is of offset -1
        (None, TopicOffset(40, 100), NOW_MS + 1, 60, 60.0),
        (None, TopicOffset(0, 0), NOW_MS + 1, 0, 0.0),
        # what retention deleted does not wait any more
        (10, TopicOffset(40, 100), NOW_MS + 1, 60, 60.0),
        # reset beyond the end
        (150, TopicOffset(0, 100), 0, 0, 0.0),
        # the broker's clock is behind its own messages
        (70, TopicOffset(0, 100), -50, 30, 0.0),
    ],
)
async def test_messages_and_ages(
    committed: int | None, ends: TopicOffset, delay_ms: int, lag: int, lag_seconds: float
) -> None:
    found, _ = await measure(committed=committed, ends=ends, delay_ms=delay_ms)

    assert (found.lag, found.lag_seconds) == (lag, lag_seconds)
    assert [queue.committed for queue in found.queues] == [committed]


async def test_nothing_is_pulled_and_no_group_is_joined() -> None:
    _, peer = await measure(committed=5, ends=TopicOffset(0, 10), delay_ms=7)

    assert {RequestCode(request.code) for request in peer.requests} == {
        RequestCode.GET_ROUTEINFO_BY_TOPIC,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.QUERY_CONSUMER_OFFSET,
    }


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.44, "0.4s"), (12.9, "12s"), (432, "7m 12s"), (3600, "1h 0m"), (273_600, "3d 4h")],
)
def test_an_age_for_people(seconds: float, text: str) -> None:
    assert format_age(seconds) == text


# --- against a real broker


def commit(cluster: RealCluster, group: str, topic: str, offsets: dict[int, int]) -> None:
    """Store offsets of a group's queues on the first broker, as its members would."""

    async def update(remoting: RemotingClient) -> None:
        await update_subscription_group(remoting, cluster.broker.address, SubscriptionGroupConfig(group_name=group))
        for queue_id, offset in offsets.items():
            queue = MessageQueue(topic, "broker-a", queue_id)
            await update_consumer_offset(remoting, cluster.broker.address, group, queue, offset)

    _with_remoting(update)


def _with_remoting(work: Callable[[RemotingClient], Awaitable[None]]) -> None:
    async def run() -> None:
        remoting = RemotingClient()
        try:
            await work(remoting)
        finally:
            await remoting.close()

    asyncio.run(run())


def write_config(path: Path, cluster: RealCluster, group: str, *topics: str) -> Path:
    subscriptions = ", ".join(f'{topic}: "*"' for topic in topics)
    path.write_text(
        f"nameserver: {cluster.nameserver}\n"
        f"groups:\n  {group}: {{subscriptions: {{{subscriptions}}}, handler: {{plugin: log}}}}\n"
    )
    return path


def test_a_group_of_the_configuration(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    config = write_config(tmp_path / "rmqd.yaml", rocketmq, group, topic)
    with Producer(rocketmq.broker.address, topic) as producer:
        for _ in range(16):
            producer.send()
    commit(rocketmq, group, topic, {**dict.fromkeys(range(7), 2), 7: 1})

    ended = rmqd("lag", "-c", config, "-o", "json")

    assert ended.code == 0, ended.err
    (document,) = ended.json()
    assert (document["group"], document["topic"], document["lag"]) == (group, topic, 1)
    assert 0 <= document["lag_seconds"] < 60
    assert [queue["lag"] for queue in document["queues"]] == [0] * 7 + [1]
    assert [queue["committed"] for queue in document["queues"]] == [2] * 7 + [1]


def test_a_group_that_only_the_brokers_know(rocketmq: RealCluster, topic: str, group: str) -> None:
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send(queue=0)
    commit(rocketmq, group, topic, {0: 1})

    ended = rmqd("lag", group, "-n", rocketmq.nameserver)

    assert ended.code == 0, ended.err
    assert ended.out.splitlines()[1].split() == [group, topic, "8", "0", "0s"]


def test_fail_over_exits_with_1_above_the_limit_and_0_below(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "rmqd.yaml", rocketmq, group, topic)
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send(queue=0)
    commit(rocketmq, group, topic, dict.fromkeys(range(8), 0))

    assert rmqd("lag", "-c", config, "--fail-over", "1h").code == 0
    late = wait_until(lambda: _failed(rmqd("lag", "-c", config, "--fail-over", "500ms")), "the message is 500 ms old")
    assert late == f"rmqd: {group}, {topic}: the oldest waiting message is"


def _failed(ended: object) -> str:
    from tests.cli.command import Ended

    assert isinstance(ended, Ended)
    assert ended.code in (0, 1), ended.err
    return ended.err.rpartition(" is")[0] + " is" if ended.code == 1 else ""


def test_an_old_group_with_a_new_message_is_not_old(rocketmq: RealCluster, topic: str, group: str) -> None:
    """Consume stats would give the age of the last handled message, days perhaps; what waits is what counts."""
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send(queue=0, properties={})
        commit(rocketmq, group, topic, {0: 1})
        wait_until(lambda: _span_seconds(rocketmq, group, topic) >= 1.5, "the handled message is 1.5 s old")
        producer.send(queue=0)

    (document,) = rmqd("lag", group, "-n", rocketmq.nameserver, "-o", "json").json()
    assert document["lag"] == 1
    assert document["lag_seconds"] <= _span_seconds(rocketmq, group, topic) - 1.5  # whatever the command took to start


def _span_seconds(cluster: RealCluster, group: str, topic: str) -> float:
    import time

    from rmqd.client.api.admin import consume_time_span

    ages: list[float] = []

    async def ask(remoting: RemotingClient) -> None:
        spans = await consume_time_span(remoting, cluster.broker.address, group, topic)
        ages.append(time.time() - spans[MessageQueue(topic, "broker-a", 0)].consume_time_stamp / 1000)

    _with_remoting(ask)
    return ages[0]


def test_a_topic_that_does_not_exist_is_named_and_the_others_are_shown(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "rmqd.yaml", rocketmq, group, topic, "no-such-topic")

    ended = rmqd("lag", "-c", config, "-o", "json")

    assert ended.code == 1
    assert [document["topic"] for document in ended.json()] == [topic]
    assert f"{group}, no-such-topic: no route" in ended.err


def test_a_group_that_nobody_knows(rocketmq: RealCluster, group: str) -> None:
    ended = rmqd("lag", group, "-n", rocketmq.nameserver)

    assert ended.code == 1
    assert f"{group}: no broker has an offset of it" in ended.err


# --- without a cluster


@pytest.mark.process
def test_without_a_cluster_it_exits_with_69() -> None:
    ended = rmqd("lag", "mailer", "-n", "127.0.0.1:1")

    assert (ended.code, ended.out) == (69, "")
    assert "RocketMQ cannot be reached" in ended.err
    assert "127.0.0.1:1" in ended.err


@pytest.mark.process
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["g", "--fail-over", "5"], "accepted: a duration such as 50ms, 5s, 15m or 1h"),
        (["-n", "127.0.0.1:1"], "name the groups, or a configuration"),
        (["g", "-o", "yaml"], "accepted: table, json"),
    ],
)
def test_wrong_usage_exits_with_2(arguments: list[str], said: str) -> None:
    ended = rmqd("lag", *arguments)

    assert ended.code == 2
    assert said in " ".join(ended.err.split())
