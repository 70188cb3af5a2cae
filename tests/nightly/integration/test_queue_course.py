"""Queues that are created, deleted, closed and moved while a group consumes them, on a real broker."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.handler_api.batch import Batch
from tests.conformance import behaviour
from tests.consumer.members import member
from tests.integration.test_queue_course import PERSIST_SECONDS, POLL_SECONDS, all_handled, send
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.rocketmq


@behaviour(
    "queues",
    "A topic that is created after the start is consumed",
    java="at the next refresh of the route, within 30 s, and the next rebalance, within 20 s",
    rmqd=("within seconds, from its first message; until then the group is not ready, and names the missing topic"),
    checked="a group of two topics, one of them created later",
)
async def test_a_topic_that_is_created_after_the_start_is_consumed_within_seconds(
    rocketmq: RealCluster, group: str
) -> None:
    """Until then the group is not ready and names the missing topic; the other topic is consumed."""
    late, early = fresh_name("late", "topic"), rocketmq.create_topic(fresh_name("early", "topic"), 2)
    seen = Seen()
    async with member(rocketmq.nameserver, seen, group=group, subscriptions=[late, early]) as m:
        keys = send(rocketmq, early, 2, "early", 10)
        await all_handled(seen, keys)
        await asyncio.sleep(12)  # the delays between route requests have grown
        snapshot = m.consumer.snapshot()
        assert not snapshot.ready
        assert late in (snapshot.not_ready_reason or "")
        rocketmq.create_topic(late, 4)
        keys |= send(rocketmq, late, 4, "late", 20)
        await all_handled(seen, keys)
        assert m.consumer.snapshot().ready


@behaviour(
    "queues",
    "A topic or a broker without write permission is consumed to its end",
    java="consumes queues that are readable",
    rmqd="the same",
    checked="updateTopicPerm and wipeWritePerm on a running group",
)
async def test_a_read_only_topic_is_consumed_to_its_end(rocketmq: RealCluster, topic: str, group: str) -> None:
    """Neither permission 4 nor wipeWritePerm at the broker prevents pulls."""
    seen = Seen()
    keys = send(rocketmq, topic, 8, "before", 80)
    rocketmq.create_topic(topic, permission=4)
    async with member(
        rocketmq.nameserver,
        seen,
        group=group,
        subscriptions=[topic],
        poll_seconds=POLL_SECONDS,
        persist_consumer_offset_interval_seconds=PERSIST_SECONDS,
        consume_from_where="first_offset",
    ) as m:
        await all_handled(seen, keys)
        rocketmq.create_topic(topic, permission=6)
        arguments = ("-b", rocketmq.broker.spec.broker_name, "-n", rocketmq.nameserver)
        await asyncio.to_thread(rocketmq.admin, "wipeWritePerm", *arguments)
        try:
            await asyncio.sleep(2 * POLL_SECONDS)
            keys |= send(rocketmq, topic, 8, "wiped", 80)  # the producer has an old route
            await all_handled(seen, keys)
            assert len(m.owned()) == 8
        finally:
            await asyncio.to_thread(rocketmq.admin, "addWritePerm", *arguments)
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")


@behaviour(
    "queues",
    "A topic that is only writable waits, and is consumed once it is readable",
    java="its pulls fail with NO_PERMISSION until its route is gone",
    rmqd="the same, and the group reports why it receives no messages",
    checked="updateTopicPerm on a running group",
    long=True,
)
async def test_a_write_only_topic_is_consumed_once_it_is_readable(
    rocketmq: RealCluster, topic: str, group: str
) -> None:
    """No message is lost or repeated, and the group reports why it receives none."""
    seen = Seen()
    async with member(
        rocketmq.nameserver,
        seen,
        group=group,
        subscriptions=[topic],
        poll_seconds=POLL_SECONDS,
        persist_consumer_offset_interval_seconds=PERSIST_SECONDS,
    ) as m:
        keys = send(rocketmq, topic, 8, "open", 40)
        await all_handled(seen, keys)
        rocketmq.create_topic(topic, permission=2)
        keys |= send(rocketmq, topic, 8, "closed", 40)
        await eventually(lambda: m.consumer.snapshot().problems, "the group says that it may not read", 60)
        [problem] = m.consumer.snapshot().problems
        assert problem.cause == "no_permission"
        handled = len(seen.keys)
        rocketmq.create_topic(topic, permission=6)
        await all_handled(seen, keys)
        assert handled < len(keys)
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
        await eventually(lambda: not m.consumer.snapshot().problems, "the problem is over")


@behaviour(
    "queues",
    "A topic that is deleted and recreated is consumed from its new beginning",
    java="continues at the queue's end, past earlier messages; only its log shows the lower offset",
    rmqd="continues at the first new message; logged and counted",
    checked="deleteTopic and updateTopic on a running group",
    long=True,
)
async def test_a_recreated_topic_is_consumed_from_its_new_beginning(rocketmq: RealCluster, group: str) -> None:
    """Its offsets begin at 0 again, below the committed offset. This is logged, and counted as a fall."""
    topic, seen = rocketmq.create_topic(fresh_name("again", "topic"), 1), Seen()
    with capture_logs() as logs:
        async with member(
            rocketmq.nameserver,
            seen,
            group=group,
            subscriptions=[topic],
            poll_seconds=POLL_SECONDS,
            persist_consumer_offset_interval_seconds=PERSIST_SECONDS,
        ) as m:
            keys = send(rocketmq, topic, 1, "old", 30)
            await all_handled(seen, keys)
            await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
            await asyncio.to_thread(rocketmq.admin, "deleteTopic", "-c", "DefaultCluster", "-t", topic)
            rocketmq.create_topic(topic, 1)
            keys |= send(rocketmq, topic, 1, "new", 10)
            await eventually(lambda: keys <= set(seen.keys), "all is handled", 60)
            await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
            falls = m.topic().falls
    assert Counter(seen.keys) == Counter(keys)
    assert sum(falls.values()) == 1, falls
    assert [entry for entry in logs if entry["event"] in ("offset.corrected", "offset.fell")]


@behaviour(
    "queues",
    "A queue moves while its messages are handled",
    java="the result is discarded, and the next owner handles the messages again",
    rmqd="they are finished and committed before the next rmqd member begins",
    checked="two members; the second joins under load",
)
async def test_a_queue_is_released_after_its_messages_in_flight_are_committed(
    rocketmq: RealCluster, topic: str, group: str
) -> None:
    """The next owner begins only then, and gets none of these messages."""
    first, second, release = Seen(), Seen(), asyncio.Event()

    async def slow(batch: Batch) -> None:
        await release.wait()
        await first(batch)

    keys = send(rocketmq, topic, 8, "m", 160)
    options: dict[str, Any] = {
        "group": group,
        "subscriptions": [topic],
        "persist_consumer_offset_interval_seconds": PERSIST_SECONDS,
        "concurrency": 160,  # for all messages at once, so each queue has some in flight
        "queue_handover_timeout_seconds": 100.0,  # longer than all waits of this test
    }
    async with member(rocketmq.nameserver, slow, **options, consume_from_where="first_offset") as m:
        await eventually(lambda: len(m.consumer.snapshot().queues) == 9, "the member has all queues")
        await eventually(
            lambda: sum(queue.handling > 0 for queue in m.consumer.snapshot().queues) == 8, "all queues are busy"
        )
        async with member(rocketmq.nameserver, second, **options, consume_from_where="first_offset") as other:
            await eventually(lambda: len(m.owned()) == 8 and m.consumer.snapshot().assigned[topic] == 8, "queues wait")
            await asyncio.sleep(1)
            assert not second.keys
            release.set()
            await eventually(lambda: len(m.owned()) == len(other.owned()) == 4, "the queues are divided")
            await eventually(lambda: len(first.keys) >= len(keys), "all is handled")
            keys |= send(rocketmq, topic, 8, "n", 80)
            await eventually(lambda: len(first.keys) + len(second.keys) >= len(keys), "all later messages are handled")
            await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
    assert Counter(first.keys + second.keys) == Counter(keys)
    assert {key[0] for key in second.keys} == {"n"}
