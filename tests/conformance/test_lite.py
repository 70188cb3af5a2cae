"""Lite topics of RocketMQ 5.5 (RIP-83): start offsets, distribution to members, and errors."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest

from rmqd.consumer.consumer_options import Subscription
from rmqd.errors import LiteTopicsRefusedError
from rmqd.wire.lite_topic import lite_topic_queue
from tests.conformance import behaviour
from tests.consumer.members import member
from tests.rocketmq import ClusterError, RealCluster, rpc
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

TURNS = 20  # the first member that pops may receive all messages of a turn


def store(cluster: RealCluster, parent: str, *keys: str, queue: int | None = None) -> None:
    """Store a message for each key `LITE_TOPIC.REST`. A key without a dot belongs to no lite topic."""
    with Producer(cluster.broker.address, parent, 4) as producer:
        for key in keys:
            lite_topic = key.rpartition(".")[0]
            properties = {"UNIQ_KEY": f"{parent}.{key}"} | ({"__LITE_TOPIC": lite_topic} if lite_topic else {})
            producer.send(key.encode(), key=key, tags="T", properties=properties, queue=queue)


async def acknowledged(cluster: RealCluster, group: str, parent: str, lite_topic: str, offset: int) -> None:
    """Wait until this is the group's offset in a lite topic."""
    topic = lite_topic_queue(parent, lite_topic, "broker-a").topic
    fields = {"consumerGroup": group, "topic": topic, "queueId": 0, "setZeroIfNotFound": "false"}

    def stored() -> bool:
        with contextlib.suppress(ClusterError):
            return rpc.call(cluster.broker.address, rpc.QUERY_CONSUMER_OFFSET, fields).fields["offset"] == str(offset)
        return False

    await eventually(stored, f"{lite_topic} is at {offset}")


def lite(parent: str, *names: str) -> dict[str, Subscription]:
    """Return a subscription to these lite topics."""
    return {parent: Subscription("*", "TAG", names)}


@behaviour(
    "lite",
    (
        "A new group starts in each lite topic at the offset that consume_from_where selects; in an "
        "empty topic, at its first message"
    ),
    java=("LitePushConsumer.subscribeLite with an OffsetOption; without it, at the first message that the broker has"),
    rmqd="the start offset is stored before the first pop, and logged",
    checked="messages before and after the first start, and while no member runs",
    since="5.5",
)
async def test_a_new_group_starts_at_the_end_of_each_lite_topic(rocketmq_of_kinds: RealCluster, group: str) -> None:
    """With `last_offset`, older messages are skipped, and all later messages are handled."""
    cluster, seen = rocketmq_of_kinds, Seen()
    parent = fresh_name(group, "lite")
    cluster.create_lite(parent, group)
    store(cluster, parent, "old.0", "old.1")
    wanted = lite(parent, "old", "new")

    async with member(cluster.nameserver, seen, group=group, subscriptions=wanted, consume_mode="pop"):
        await acknowledged(cluster, group, parent, "old", 2)
        await acknowledged(cluster, group, parent, "new", 0)
    store(cluster, parent, "old.2", "new.0")
    async with member(cluster.nameserver, seen, group=group, subscriptions=wanted, consume_mode="pop"):
        await eventually(lambda: len(seen.attempts) == 2, "the messages sent meanwhile are handled")
    assert sorted(attempt.key for attempt in seen.attempts) == ["new.0", "old.2"]


@behaviour(
    "lite",
    (
        "Members of a group that name the same lite topics share their messages; a leaving member gives "
        "up its subscription"
    ),
    java="the broker notifies one of the subscribed members of each message",
    rmqd="the same; a member withdraws its subscription before it leaves",
    checked="two members and a hundred messages of ten lite topics, half of them after one member has left",
    since="5.5",
)
async def test_members_share_lite_topics(rocketmq_of_kinds: RealCluster, group: str) -> None:
    """Each message is handled once."""
    cluster, first, second = rocketmq_of_kinds, Seen(), Seen()
    parent, names = fresh_name(group, "lite"), [f"n{number}" for number in range(10)]
    cluster.create_lite(parent, group)
    options: dict[str, Any] = {"group": group, "subscriptions": lite(parent, *names), "consume_mode": "pop"}

    def keys() -> list[str]:
        return sorted(attempt.key for attempt in [*first.attempts, *second.attempts])

    async with (
        member(cluster.nameserver, first, consume_from_where="first_offset", **options) as one,
        member(cluster.nameserver, second, consume_from_where="first_offset", **options) as other,
    ):
        for joined in (one, other):
            await eventually(lambda joined=joined: joined.consumer.assignments(), "member joins")  # type: ignore[misc]
        sent: list[str] = []

        def all_are_handled() -> bool:
            return len(keys()) >= len(sent)

        for turn in range(TURNS):
            sent += [f"{name}.{number}" for number in range(5 * turn, 5 * turn + 5) for name in names]
            store(cluster, parent, *sent[-50:])
            await eventually(all_are_handled, "all messages are handled")
            if first.attempts and second.attempts:
                break
        assert first.attempts
        assert second.attempts
        await other.stop()
        sent += [f"{name}.{number}" for number in range(5 * TURNS, 5 * TURNS + 5) for name in names]
        store(cluster, parent, *sent[-50:])
        await eventually(all_are_handled, "the remaining member handles all messages")
    assert keys() == sorted(sent)


@behaviour(
    "lite",
    "A topic without lite topics, or a group that is not bound to the topic, gives a clear error",
    java="the broker rejects each pop (code 29), and the consumer repeats it",
    rmqd="the group fails; its error names the missing attribute and the command that sets it",
    checked=("a topic of type NORMAL, a group without a bound topic, a group for all lite topics, an exclusive group"),
    since="5.5",
)
@pytest.mark.parametrize(
    ("message_type", "attributes", "says"),
    [
        ("NORMAL", {"+lite.bind.topic": "PARENT"}, "message type LITE"),
        ("LITE", {}, "not bound to a topic; bind it with `mqadmin updateSubGroup"),
        ("LITE", {"+lite.bind.topic": "PARENT", "+lite.sub.wildcard": "true"}, "lite.sub.wildcard"),
        ("LITE", {"+lite.bind.topic": "PARENT", "+lite.sub.model": "Exclusive"}, "lite.sub.model=Exclusive"),
    ],
)
async def test_a_topic_or_group_without_settings_for_lite_topics_is_an_error(
    rocketmq_of_kinds: RealCluster, group: str, message_type: str, attributes: dict[str, str], says: str
) -> None:
    cluster, parent = rocketmq_of_kinds, fresh_name(group, "lite")
    cluster.create_topic(parent, 4, message_type=message_type)
    cluster.create_group(group, {name: value.replace("PARENT", parent) for name, value in attributes.items()})

    with pytest.raises(ExceptionGroup) as failed:
        async with member(
            cluster.nameserver, Seen(), group=group, subscriptions=lite(parent, "a"), consume_mode="pop"
        ) as one:
            await eventually(one.task.done, "the group fails")
    error: BaseException = failed.value
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, LiteTopicsRefusedError)
    assert says in str(error)
