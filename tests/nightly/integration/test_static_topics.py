"""Static topics: rmqd reads the logical queues as Java does, also while they are moved."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmqd.handler_api.batch import Batch
from tests.conformance import behaviour
from tests.conformance.attempts import differing, steps
from tests.conformance.scripted import both
from tests.consumer.members import member
from tests.nightly.integration.static_topics import LOGICAL, QUEUES, send, static_topic
from tests.rocketmq import ClusterError, RealCluster, ledger
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually, wait_until

pytestmark = [pytest.mark.rocketmq, pytest.mark.slow]

MESSAGES = 400


def send_scripts(cluster: RealCluster, topic: str, *scripts: str) -> None:
    """Store a message for each script in the logical queues in turn; only the leader of a queue accepts it."""
    for number, script in enumerate(scripts):
        properties = {"script": script, "UNIQ_KEY": f"{topic}.{number}"}
        for master in cluster.masters:
            with contextlib.suppress(ClusterError), Producer(master.address, topic) as producer:
                producer.send(key=f"{number}", tags="T", queue=number % QUEUES, properties=properties)


@behaviour(
    "queues",
    ("The queues of a static topic are logical queues, with the broker name __syslo__global__ and separate offsets"),
    java="read from the brokers that lead them; messages have that broker name too",
    rmqd="the same",
    checked="compared with a Java consumer: every field of messages in four logical queues",
    since="5.0",
)
@behaviour(
    "retries",
    "A failed message of a static topic is sent to the retry topic as a new message",
    java="the same id, keys and properties; reconsume times and delay levels as with send-back",
    rmqd="the same",
    checked="compared with a Java consumer: every attempt, with reconsume times and levels",
    since="5.0",
)
async def test_messages_and_retries_of_logical_queues_match_java(
    rocketmq_static: RealCluster, group: str, tmp_path: Path
) -> None:
    """Retries are new messages, because a broker cannot send back a message that an earlier leader stored."""
    topic = static_topic(rocketmq_static, group)
    await asyncio.to_thread(send_scripts, rocketmq_static, topic, "ok", "later,later,ok", *["ok"] * 6)
    async with both(rocketmq_static, group, tmp_path, [topic], consume_from_where="first_offset") as sides:
        await sides.handled(8 + 2, 60)
        java, rmqd = await sides.stop()
    first = [{one.keys: one.without() for one in side if not one.reconsume_times} for side in (java, rmqd)]
    assert differing(first[0], first[1]) == {}
    assert len(first[0]) == 8
    assert {one["broker_name"] for one in first[0].values()} == {LOGICAL}
    assert {(one.queue_id, one.queue_offset) for one in rmqd if not one.reconsume_times} == {
        (queue, offset) for queue in range(QUEUES) for offset in range(2)
    }
    assert steps(java.of("1")) == steps(rmqd.of("1")) == [(0, None), (1, "3"), (2, "4")]
    for side in (java, rmqd):
        again = side.of("1")[2]
        assert (again.topic, again.msg_id, again.tags) == (topic, f"{topic}.1", "T")


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
async def test_all_logical_queues_are_read(
    rocketmq_static: RealCluster, request: pytest.FixtureRequest, group: str, tmp_path: Path, mode: str
) -> None:
    topic, seen = static_topic(rocketmq_static, request.node.name), Seen()
    options: dict[str, Any] = {"group": group, "subscriptions": [topic], "consume_mode": mode}
    async with member(rocketmq_static.nameserver, seen, poll_seconds=1.0, **options) as m:
        await eventually(lambda: len(m.owned()) == QUEUES, "the member has the logical queues")
        await asyncio.to_thread(send, rocketmq_static, topic, tmp_path, 0, MESSAGES)
        await eventually(lambda: len(seen.keys) >= MESSAGES, "all are handled")
        assert {queue.broker for queue in m.consumer.snapshot().queues if queue.topic == topic} >= {LOGICAL}
    assert Counter(seen.keys) == Counter(f"m-{number}" for number in range(MESSAGES))
    async with member(rocketmq_static.nameserver, seen, **options) as m:  # continues at the committed offsets
        await eventually(lambda: len(m.owned()) == QUEUES, "the next member has the queues")
        await asyncio.to_thread(send, rocketmq_static, topic, tmp_path, MESSAGES, MESSAGES + 1)
        await eventually(lambda: len(seen.keys) > MESSAGES, "the later message is handled")
    assert len(seen.keys) == MESSAGES + 1


@behaviour(
    "queues",
    (
        "A logical queue that remappingStaticTopic moves to another broker is read further there, and no"
        " message is repeated"
    ),
    java="the same queue, with continuous offsets",
    rmqd="the same",
    checked="a Java consumer in another group, a move between 400 messages and 400 more, and a new group after it",
    since="5.0",
    long=True,
)
async def test_queues_that_move_lose_and_repeat_no_message(
    rocketmq_pair: RealCluster, request: pytest.FixtureRequest, group: str, tmp_path: Path
) -> None:
    """Their offsets continue, although the new broker's own offsets start at 0."""
    topic, seen, theirs = static_topic(rocketmq_pair, request.node.name), Seen(), tmp_path / "java"
    begin: dict[str, Any] = {"subscriptions": [topic], "consume_from_where": "first_offset", "poll_seconds": 1.0}

    def by_java() -> list[str]:
        return [entry.key for entry in ledger.read(theirs) if entry.event == "finish"]

    async with member(rocketmq_pair.nameserver, seen, group=group, **begin):
        with start_consumer(PeerOptions(rocketmq_pair.nameserver, topic, theirs), fresh_name("java", "group")):
            await asyncio.to_thread(send, rocketmq_pair, topic, tmp_path, 0, MESSAGES)
            await eventually(lambda: len(seen.keys) >= MESSAGES, "all are handled before the move")
            await asyncio.to_thread(rocketmq_pair.admin, "remappingStaticTopic", "-t", topic, "-b", "broker-a")
            await asyncio.to_thread(send, rocketmq_pair, topic, tmp_path, MESSAGES, 2 * MESSAGES)
            await eventually(lambda: len(seen.keys) >= 2 * MESSAGES, "all are handled after it", 60)
            await asyncio.to_thread(wait_until, lambda: len(by_java()) >= 2 * MESSAGES, "Java has handled all", 60)
    assert Counter(seen.keys) == Counter(by_java()) == Counter(f"m-{number}" for number in range(2 * MESSAGES))
    late = Seen()  # reads the previous broker's messages through the new one
    async with member(
        rocketmq_pair.nameserver,
        late,
        group=fresh_name("late", "group"),
        subscriptions=[topic],
        consume_from_where="first_offset",
    ):
        await eventually(lambda: len(late.keys) >= 2 * MESSAGES, "a new group has all", 60)
    assert Counter(late.keys) == Counter(seen.keys)
    places = {(attempt.queue, attempt.offset): attempt.key for attempt in seen.attempts}
    assert places == {(attempt.queue, attempt.offset): attempt.key for attempt in late.attempts}


@behaviour(
    "rebalance",
    "Java and rmqd members share the logical queues of a static topic",
    java="divides them like the queues of brokers",
    rmqd="the same",
    checked="a Java consumer and rmqd in one group under load, with messages that fail once: their ledgers",
    since="5.0",
)
async def test_queues_are_divided_with_a_java_member(
    rocketmq_static: RealCluster, request: pytest.FixtureRequest, group: str, tmp_path: Path
) -> None:
    """Failed messages are sent to the retry topic, whichever broker has it."""
    topic, seen, theirs = static_topic(rocketmq_static, request.node.name), Seen(), tmp_path / "java"

    async def fail_first(batch: Batch) -> None:
        await seen(batch)
        if not batch[0].reconsume_times and (batch[0].keys or "").endswith("00"):
            raise RuntimeError("not now")

    async with member(rocketmq_static.nameserver, fail_first, group=group, subscriptions=[topic]) as m:
        await eventually(lambda: len(m.owned()) == QUEUES, "it has all queues", 60)
        with start_consumer(PeerOptions(rocketmq_static.nameserver, topic, theirs), group):
            await eventually(lambda: len(m.owned()) == QUEUES // 2, "each has half of the queues", 60)
            await asyncio.to_thread(send, rocketmq_static, topic, tmp_path, 0, MESSAGES)

            def keys() -> set[str]:
                return {entry.key for entry in ledger.read(theirs)} | set(seen.keys)

            wait = asyncio.to_thread(wait_until, lambda: len(keys()) >= MESSAGES, "all are handled", 60)
            await wait
            assert len(set(seen.keys)) == MESSAGES // 2
