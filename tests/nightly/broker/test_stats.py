"""Statistics of topics, groups and clients for administrators."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from rmqd.broker.embedded_rocketmq import EmbeddedOptions
from rmqd.wire.bodies.config_bodies import SubscriptionGroupConfig
from rmqd.wire.bodies.group_bodies import (
    GroupList,
    ProducerConnection,
    ProducerTableInfo,
    QueryConsumeTimeSpanBody,
    QuerySubscriptionResponseBody,
)
from rmqd.wire.bodies.heartbeat_data import SubscriptionData
from rmqd.wire.bodies.route_data import TopicList
from rmqd.wire.bodies.stats_bodies import (
    BrokerStatsData,
    ConsumeQueueData,
    ConsumerConnection,
    ConsumeStats,
    ConsumeStatsList,
    OffsetWrapper,
    QueryConsumeQueueResponseBody,
    TopicStatsTable,
)
from rmqd.wire.message_queue import MessageQueue
from tests.broker.beats import beat, consumer
from tests.nightly.broker.asking import Asking, asking, body, told

TOPIC_STATS, CONSUMERS, PRODUCERS, CONSUME_STATS, ALL_PRODUCERS = 202, 203, 204, 208, 328
GROUPS_OF_TOPIC, TIME_SPAN, COUNTER, ALL_CONSUME_STATS, CONSUME_QUEUE = 300, 303, 315, 317, 321
TOPICS_OF_GROUP, SUBSCRIPTION = 343, 345


@pytest.fixture
async def mq() -> AsyncIterator[Asking]:
    """An embedded RocketMQ with the topics T and U of two queues. T has two messages in queue 0 and one in queue 1."""
    async with asking(EmbeddedOptions(topics={"T": 2, "U": 2})) as connections:
        for queue_id in (0, 0, 1):
            await connections.broker.send("T", queue_id=queue_id)
        yield connections


async def commit(mq: Asking, group: str, topic: str, queue_id: int, offset: int) -> None:
    await mq.broker.call(200, body=SubscriptionGroupConfig(group_name=group).to_json())
    fields = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id), "commitOffset": str(offset)}
    assert (await mq.broker.call(15, fields)).code == 0


def queue(topic: str, queue_id: int) -> MessageQueue:
    return MessageQueue(topic, "broker-a", queue_id)


async def places(mq: Asking, **fields: str) -> dict[MessageQueue, OffsetWrapper]:
    reply = await mq.broker.call(CONSUME_STATS, {"consumerGroup": "g", **fields})
    assert reply.code == 0
    return ConsumeStats.from_json(reply.body).offset_table


async def test_the_offset_range_of_each_queue_of_a_topic(mq: Asking) -> None:
    await mq.create("T", 2, read_queue_nums=3)
    stats = TopicStatsTable.from_json((await mq.broker.call(TOPIC_STATS, {"topic": "T"})).body)

    ends = {(mq.queue_id, end.min_offset, end.max_offset) for mq, end in stats.offset_table.items()}
    assert ends == {(0, 0, 2), (1, 0, 1), (2, 0, 0)}
    assert stats.offset_table[queue("T", 0)].last_update_timestamp > 0
    assert stats.offset_table[queue("T", 2)].last_update_timestamp == 0
    assert stats.topic_put_tps > 0
    assert told(await mq.broker.call(TOPIC_STATS, {"topic": "nope"})) == (17, "topic[nope] not exist")


async def test_the_offsets_of_a_group(mq: Asking) -> None:
    """In topics with a commit. Other topics only if the request names them."""
    assert await places(mq) == {}
    await commit(mq, "g", "T", 0, 1)
    await commit(mq, "g", "T", 1, 5)

    table = await places(mq)
    assert table.keys() == {queue("T", 0), queue("T", 1)}
    first, second = table[queue("T", 0)], table[queue("T", 1)]
    assert (first.broker_offset, first.consumer_offset, first.pull_offset, first.last_timestamp > 0) == (2, 1, 1, True)
    assert second == OffsetWrapper(1, 5, 5, 0)
    assert await places(mq, topic="T") == table
    assert await places(mq, topic=" ") == table
    assert (await places(mq, topic="U")).keys() == {queue("U", 0), queue("U", 1)}
    assert await places(mq, topic="nope") == {}


async def test_a_group_with_members_has_only_offsets_of_its_subscriptions(mq: Asking) -> None:
    """Unless the request has a list of topics."""
    await beat(mq.broker, "c", consumer("g", "T"))
    await commit(mq, "g", "T", 0, 1)
    await commit(mq, "g", "U", 0, 0)

    assert {one.topic for one in await places(mq)} == {"T"}
    assert await places(mq, topic="U") == {}
    assert {one.topic for one in await places(mq, topicList="U;nope;")} == {"U"}


async def test_the_offsets_of_all_groups(mq: Asking) -> None:
    await beat(mq.broker, "c", consumer("g", "T"))
    await commit(mq, "g", "T", 0, 1)
    await commit(mq, "g", "U", 0, 0)
    reply = await mq.broker.call(ALL_CONSUME_STATS, {"isOrder": "false"})
    stats = ConsumeStatsList.from_json(reply.body)

    assert stats.broker_addr == mq.rocketmq.broker.address
    (only,) = stats.consume_stats_list["g"]
    assert only.offset_table.keys() == {queue("T", 0), queue("T", 1)}
    assert only.offset_table[queue("T", 0)].pull_offset == 0  # as in the real broker, although request 208 returns 1
    assert b'"totalDiff":2,"totalInflightDiff":-1}' in reply.body
    assert stats.consume_stats_list["TOOLS_CONSUMER"] == ()

    ordered = ConsumeStatsList.from_json((await mq.broker.call(ALL_CONSUME_STATS, {"isOrder": "true"})).body)
    assert ordered.consume_stats_list["g"] == ()


async def test_the_delay_of_unhandled_messages(mq: Asking) -> None:
    await commit(mq, "g", "T", 0, 1)
    await commit(mq, "g", "T", 1, 1)
    reply = await mq.broker.call(TIME_SPAN, {"topic": "T", "group": "g"})
    first, second = QueryConsumeTimeSpanBody.from_json(reply.body).consume_time_span_set

    assert first.message_queue == queue("T", 0)
    assert first.min_time_stamp == first.consume_time_stamp <= first.max_time_stamp
    assert 0 <= first.delay_time < 60_000
    assert second.delay_time == 0  # no message waits
    assert set(body(reply)["consumeTimeSpanSet"][0]) >= {"minTimeStampStr", "maxTimeStampStr", "consumeTimeStampStr"}
    assert told(await mq.broker.call(TIME_SPAN, {"topic": "nope", "group": "g"})) == (17, "topic[nope] not exist")


async def test_the_delay_without_an_offset_and_messages(mq: Asking) -> None:
    """The real broker subtracts the store time of a missing message, which is -1."""
    reply = await mq.broker.call(TIME_SPAN, {"topic": "U", "group": "g"})
    span = QueryConsumeTimeSpanBody.from_json(reply.body).consume_time_span_set[0]
    assert (span.min_time_stamp, span.max_time_stamp, span.consume_time_stamp) == (-1, -1, -1)
    assert span.delay_time > 1_700_000_000_000
    assert ":59:999" in body(reply)["consumeTimeSpanSet"][0]["minTimeStampStr"]


async def test_counters_of_topics_and_groups(mq: Asking) -> None:
    pulled = {
        "consumerGroup": "g",
        "topic": "T",
        "queueId": "0",
        "queueOffset": "0",
        "maxMsgNums": "32",
        "sysFlag": "4",
    }
    pulled |= {"commitOffset": "0", "suspendTimeoutMillis": "0", "subscription": "*", "subVersion": "0"}
    assert (await mq.broker.call(11, pulled)).code == 0
    for name, key, expected in (("TOPIC_PUT_NUMS", "T", 3), ("GROUP_GET_NUMS", "T@g", 2)):
        data = BrokerStatsData.from_json((await mq.broker.call(COUNTER, {"statsName": name, "statsKey": key})).body)
        assert [span.sum for span in (data.stats_minute, data.stats_hour, data.stats_day)] == [expected] * 3

    unknown = await mq.broker.call(COUNTER, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "U"})
    assert told(unknown) == (1, "The stats <TOPIC_PUT_NUMS> <U> not exist")
    await mq.broker.call(215, {"topic": "T"})
    gone = await mq.broker.call(COUNTER, {"statsName": "GROUP_GET_NUMS", "statsKey": "T@g"})
    assert told(gone) == (1, "The stats <GROUP_GET_NUMS> <T@g> not exist")


async def test_the_entries_of_a_queue(mq: Asking) -> None:
    place = {"topic": "T", "queueId": "0", "index": "1", "count": "10"}
    plain = await mq.broker.call(CONSUME_QUEUE, place)
    assert told(plain) == (0, "not set any response code")
    answer = QueryConsumeQueueResponseBody.from_json(plain.body)
    (entry,) = answer.queue_data
    assert (answer.min_queue_index, answer.max_queue_index, answer.filter_data) == (0, 2, None)
    assert entry == ConsumeQueueData(entry.physic_size, entry.physic_size, 0)  # the second of two entries of one size

    offline = QueryConsumeQueueResponseBody.from_json(
        (await mq.broker.call(CONSUME_QUEUE, {**place, "consumerGroup": "g"})).body
    )
    assert (offline.filter_data, offline.subscription_data) == ("g@T is not online!", None)
    await beat(mq.broker, "c", consumer("g", "T"))
    online = QueryConsumeQueueResponseBody.from_json(
        (await mq.broker.call(CONSUME_QUEUE, {**place, "consumerGroup": "g"})).body
    )
    assert (online.filter_data, online.subscription_data) == ("null", SubscriptionData("T", sub_version=1))


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ({"queueId": "0", "index": "2"}, (0, "Index 2 of 0@T is not exist!")),
        ({"queueId": "0", "index": "-1"}, (0, "Index -1 of 0@T is not exist!")),
        ({"queueId": "9", "index": "0"}, (1, "9@T is not exist!")),
    ],
)
async def test_missing_entries_of_a_queue(mq: Asking, place: dict[str, str], expected: tuple[int, str]) -> None:
    assert told(await mq.broker.call(CONSUME_QUEUE, {"topic": "T", "count": "1", **place})) == expected


async def test_the_members_of_a_group(mq: Asking) -> None:
    assert told(await mq.broker.call(CONSUMERS, {"consumerGroup": "g"})) == (206, "the consumer group[g] not online")
    await beat(mq.broker, "c", consumer("g", "T"), version=401)

    connection = ConsumerConnection.from_json((await mq.broker.call(CONSUMERS, {"consumerGroup": "g"})).body)
    (one,) = connection.connection_set
    assert (one.client_id, one.language, one.version) == ("c", "PYTHON", 401)
    assert one.client_addr.startswith("127.0.0.1:")
    assert connection.subscription_table == {"T": SubscriptionData("T", sub_version=1)}
    assert connection.consume_type == "CONSUME_PASSIVELY"
    assert connection.message_model == "CLUSTERING"
    assert connection.consume_from_where == "CONSUME_FROM_LAST_OFFSET"


async def test_the_producers_of_a_group_and_of_all_groups(mq: Asking) -> None:
    asked = {"producerGroup": "p"}
    assert told(await mq.broker.call(PRODUCERS, asked)) == (1, "the producer group[p] not exist")
    assert body(await mq.broker.call(ALL_PRODUCERS)) == {"data": {}}
    await beat(mq.broker, "c", producers=["p"])

    (one,) = ProducerConnection.from_json((await mq.broker.call(PRODUCERS, asked)).body).connection_set
    assert (one.client_id, one.language) == ("c", "PYTHON")
    everyone = ProducerTableInfo.from_json((await mq.broker.call(ALL_PRODUCERS)).body)
    ((producer,),) = everyone.data.values()
    assert (producer.client_id, producer.remote_ip) == ("c", f"/{one.client_addr}")
    assert producer.last_update_timestamp > 1_700_000_000_000


async def test_groups_of_a_topic_and_topics_of_a_group(mq: Asking) -> None:
    """From their members and their offsets."""
    await beat(mq.broker, "c", consumer("online", "T"))
    await commit(mq, "offline", "T", 0, 1)

    groups = GroupList.from_json((await mq.broker.call(GROUPS_OF_TOPIC, {"topic": "T"})).body)
    assert set(groups.groups) == {"online", "offline"}
    assert body(await mq.broker.call(GROUPS_OF_TOPIC, {"topic": "nope"})) == {"groupList": []}
    address = mq.rocketmq.broker.address
    for group, topics in (("offline", ("T",)), ("online", ())):
        reply = await mq.broker.call(TOPICS_OF_GROUP, {"group": group})
        assert TopicList.from_json(reply.body) == TopicList(topics, address)


async def test_the_subscription_of_a_group(mq: Asking) -> None:
    asked = {"group": "g", "topic": "T"}
    assert body(await mq.broker.call(SUBSCRIPTION, asked)) == {"group": "g", "topic": "T"}
    await beat(mq.broker, "c", consumer("g", "T"))
    data = QuerySubscriptionResponseBody.from_json((await mq.broker.call(SUBSCRIPTION, asked)).body)
    assert data.subscription_data == SubscriptionData("T", sub_version=1)
    assert body(await mq.broker.call(SUBSCRIPTION, {"group": "g"})) == {"group": "g"}
