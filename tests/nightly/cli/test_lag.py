"""`rmqd lag` against a real broker: messages, ages and exit codes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from rmqd import MessageQueue
from rmqd.client.api.group_requests import update_subscription_group
from rmqd.client.api.offset_requests import update_consumer_offset
from rmqd.client.remoting.remoting_client import RemotingClient
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from tests.cli.command import rmqd
from tests.rocketmq.cluster import RealCluster
from tests.rocketmq.producer import Producer
from tests.waiting import wait_until


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
    assert ended.out.splitlines()[1].split() == [group, topic, "8", "0", "0s", "-"]


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


def test_lag_seconds_is_the_age_of_the_oldest_waiting_message(rocketmq: RealCluster, topic: str, group: str) -> None:
    """RocketMQ's consume stats give the age of the last handled message, which may be days."""
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send(queue=0, properties={})
        commit(rocketmq, group, topic, {0: 1})
        wait_until(lambda: _span_seconds(rocketmq, group, topic) >= 1.5, "the handled message is 1.5 s old")
        producer.send(queue=0)

    (document,) = rmqd("lag", group, "-n", rocketmq.nameserver, "-o", "json").json()
    assert document["lag"] == 1
    assert document["lag_seconds"] <= _span_seconds(rocketmq, group, topic) - 1.5  # even if the command starts slowly


def _span_seconds(cluster: RealCluster, group: str, topic: str) -> float:
    import time

    from rmqd.client.api.admin_requests import consume_time_span

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


def test_an_unknown_group_is_an_error(rocketmq: RealCluster, group: str) -> None:
    ended = rmqd("lag", group, "-n", rocketmq.nameserver)

    assert ended.code == 1
    assert f"{group}: it has no offset on any broker" in ended.err
