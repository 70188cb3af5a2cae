"""The messages that a group receives, and the offsets that it commits, at a real broker."""

from __future__ import annotations

import asyncio

from rmqd.consumer.consumer_options import Subscription
from rmqd.handler_api.batch import Batch
from tests.conformance import behaviour
from tests.consumer.members import member
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

PERSIST_SECONDS = 0.2

COMMITTED = behaviour(
    "offsets",
    "Handled messages are committed within persist_consumer_offset_interval",
    java="with each pull; every 5 s, sent without waiting for a response",
    rmqd="with pulls; every 5 s, and only if it changed",
    checked="the broker's offsets, queue by queue",
)
HELD = behaviour(
    "offsets",
    "The committed offset is that of the first unfinished message",
    java="smallest cached offset, never lowered",
    rmqd="the same",
    checked="the broker's offsets while a handler is stuck",
)


@behaviour(
    "filters",
    "A tag filter selects messages by their tag, even if another tag has the same hash",
    java="broker by hash, then the client by name",
    rmqd="the same; messages that the broker passed and the client filtered out do not count as lag",
    checked="tags with the same hashCode in Java, at a real broker",
)
async def test_only_messages_with_the_wanted_tags_are_handled(rocketmq: RealCluster, topic: str, group: str) -> None:
    """`Aa` and `BB` have one hash in Java: the broker sends both, the handler gets one. All offsets are committed."""
    seen = Seen()
    with Producer(rocketmq.broker.address, topic) as producer:
        for number in range(40):
            producer.send(key=f"m{number}", tags=["BB", "Aa", "paid", "other", ""][number % 5])
    async with member(
        rocketmq.nameserver,
        seen,
        group=group,
        subscriptions={topic: "BB || paid"},
        persist_consumer_offset_interval_seconds=PERSIST_SECONDS,
        consume_from_where="first_offset",
    ) as one:
        await eventually(lambda: len(seen.keys) >= 16, "the wanted messages are handled")
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "unwanted messages do not count as lag")
        assert one.topic().received == 16
    assert {attempt.properties["TAGS"] for attempt in seen.attempts} == {"BB", "paid"}
    assert len(seen.keys) == 16


@behaviour(
    "filters",
    "SQL92 conditions over properties, next to a subscription by tags in one group",
    java="evaluated by the broker",
    rmqd="the same",
    checked="the messages that the broker selected; the others count as consumed",
)
async def test_sql_conditions_are_evaluated_by_the_broker(rocketmq: RealCluster, topic: str, group: str) -> None:
    """Conditions over properties, next to a subscription by tags in the same group."""
    other = rocketmq.create_topic(fresh_name("tagged", "topic"), 1)
    seen = Seen()
    with Producer(rocketmq.broker.address, topic) as producer, Producer(rocketmq.broker.address, other, 1) as second:
        for number in range(32):
            producer.send(key=f"m{number}", properties={"amount": str(number * 10)})
        second.send(key="tagged", tags="T")
        second.send(key="untagged")
    subscriptions = {topic: Subscription("amount > 200 AND amount <= 250", "SQL92"), other: Subscription("T", "TAG")}
    async with member(
        rocketmq.nameserver,
        seen,
        group=group,
        subscriptions=subscriptions,
        persist_consumer_offset_interval_seconds=PERSIST_SECONDS,
        consume_from_where="first_offset",
    ):
        await eventually(lambda: len(seen.keys) >= 6, "the wanted messages are handled")
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "unwanted messages do not count as lag")
    assert sorted(seen.keys) == ["m21", "m22", "m23", "m24", "m25", "tagged"]


@COMMITTED
@HELD
async def test_broker_offsets_follow_the_handled_messages(rocketmq: RealCluster, topic: str, group: str) -> None:
    """In each queue, up to the first unfinished message. The stop commits the offsets of the rest."""
    seen, release = Seen(), asyncio.Event()

    async def handle(batch: Batch) -> None:
        if batch[0].keys == "slow":
            await release.wait()
        await seen(batch)

    with Producer(rocketmq.broker.address, topic) as producer:
        for number in range(80):
            producer.send(key=f"m{number}")
        slow_queue, slow_offset = producer.send(key="slow", queue=5)
        for number in range(80):
            producer.send(key=f"n{number}")
    expected = offsets.stored(rocketmq, topic)
    [held] = [queue for queue in expected if queue.queue_id == slow_queue]
    async with member(
        rocketmq.nameserver,
        handle,
        group=group,
        subscriptions=[topic],
        persist_consumer_offset_interval_seconds=PERSIST_SECONDS,
        consume_from_where="first_offset",
    ) as one:
        await eventually(
            lambda: offsets.committed(rocketmq, group, topic) == {**expected, held: slow_offset},
            "everything below the slow message is committed, and nothing above it",
        )
        assert len(seen.keys) == 160
        release.set()
        await one.stop()
    assert offsets.committed(rocketmq, group, topic) == expected
    assert len(seen.keys) == len(set(seen.keys)) == 161
