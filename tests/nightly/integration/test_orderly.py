"""Orderly groups on a real RocketMQ: queues that move to a Java member and back, a broker that loses its locks."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from rmqd import Batch
from tests.conformance import behaviour
from tests.consumer.members import Member, member
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.ledger import FINISH, START, Entry
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.rocketmq.producer import Producer
from tests.waiting import eventually

pytestmark = pytest.mark.rocketmq

QUEUES = 4
MESSAGES = 100  # in each queue
OPTIONS: dict[str, Any] = {"consume_mode": "orderly", "persist_consumer_offset_interval_seconds": 1.0}


class Writer:
    """A slow handler that keeps its ledger in memory."""

    def __init__(self, seconds: float, name: str = "rmqd") -> None:
        self.entries: list[Entry] = []
        self.seconds = seconds
        self._name = name

    async def __call__(self, batch: Batch) -> None:
        for message in batch:
            self._write(START, message)
            await asyncio.sleep(self.seconds)
            self._write(FINISH, message)

    @property
    def finished(self) -> int:
        return sum(entry.event == FINISH for entry in self.entries)

    def _write(self, event: str, message: Any) -> None:
        now = time.time_ns() // 1000
        place = (message.broker_name, message.queue_id, message.queue_offset)
        self.entries.append(Entry(event, message.keys or "", *place, self._name, now, message.reconsume_times))


def fill(cluster: RealCluster, topic: str) -> None:
    with Producer(cluster.broker.address, topic, QUEUES) as producer:
        for queue in range(QUEUES):
            producer.send_batch([f"{queue}.{number}" for number in range(MESSAGES)], queue=queue)


def check_order(entries: list[Entry]) -> None:
    """Check that each queue is handled in order, by one member at a time, and no message twice."""
    by_queue = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.at_micros):
        by_queue[entry.queue].append(entry)
    assert len(by_queue) == QUEUES
    for course in by_queue.values():
        for begin, end in zip(course[::2], course[1::2], strict=True):
            assert (begin.event, end.event) == (START, FINISH), f"two at once: {begin} {end}"
            assert (begin.offset, begin.member) == (end.offset, end.member), f"two at once: {begin} {end}"
        assert [entry.offset for entry in course[::2]] == list(range(MESSAGES))


def owned(one: Member) -> int:
    return len(one.owned())


@behaviour(
    "orderly",
    "A queue that moves continues at its offset, and no message is handled twice",
    java="its last commits are one-way, and may arrive after its locks are released",
    rmqd="commits, with a response, before it releases a lock",
    checked="queues that move from rmqd to a Java member and back under load",
)
async def test_queues_move_to_a_java_member_and_back(rocketmq: RealCluster, group: str, tmp_path: Path) -> None:
    """Queues that rmqd released repeat no message, and no queue has two owners at once."""
    topic = rocketmq.create_topic(fresh_name(group, "topic"), QUEUES)
    fill(rocketmq, topic)
    writer, path = Writer(0.05), tmp_path / "java.ledger"
    async with member(
        rocketmq.nameserver, writer, group=group, subscriptions=[topic], **OPTIONS, consume_from_where="first_offset"
    ) as one:
        await eventually(lambda: writer.finished > QUEUES * 5, "rmqd handles messages")
        peer = PeerOptions(rocketmq.nameserver, topic, path)
        writer.seconds = 0.5  # leaves messages for Java, however long it takes to start
        java = await asyncio.to_thread(start_consumer, peer, group, orderly=True, handle_millis=50)
        writer.seconds = 0.05
        try:
            await eventually(lambda: owned(one) == QUEUES // 2, "rmqd released half of the queues")
            # Java requests a lock that it did not get every 20 s
            await eventually(lambda: len(ledger.read(path)) > 20, "Java handles messages", seconds=60)
            assert await asyncio.to_thread(java.stop) is not None
        finally:
            java.kill()
        await eventually(lambda: owned(one) == QUEUES, "rmqd has them again", 40)
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed", 40)
        assert one.topic().duplicates == {}
    # Java's last commits are one-way and may be lost, so only queues that rmqd released must repeat nothing
    taken_back = {(entry.queue, entry.offset) for entry in ledger.read(path)}
    mine = [entry for entry in writer.entries if (entry.queue, entry.offset) not in taken_back]
    check_order(mine + ledger.read(path))


@behaviour(
    "orderly",
    "A restarted broker that has forgotten its locks gives them to the same members",
    java="with the next renewal, every 20 s; a queue without its lock asks every 3 s",
    rmqd="with the next renewal; a queue that waits for its lock asks every 0.2 s",
    checked="a restarted broker under load: the order, and no gap",
)
async def test_queues_keep_their_order_after_a_broker_lost_its_locks(rocketmq_faulty: RealCluster, group: str) -> None:
    """Locks are only in the broker's memory. After a restart the member requests them again."""
    topic = rocketmq_faulty.create_topic(fresh_name(group, "topic"), QUEUES)
    fill(rocketmq_faulty, topic)
    writer = Writer(0.05)
    async with member(
        rocketmq_faulty.nameserver,
        writer,
        group=group,
        subscriptions=[topic],
        **OPTIONS,
        consume_from_where="first_offset",
    ) as one:
        await eventually(lambda: writer.finished > QUEUES * 5, "the member handles messages")
        await asyncio.to_thread(rocketmq_faulty.restart, "broker")
        await eventually(lambda: offsets.lag(rocketmq_faulty, group, topic) == 0, "all is committed", 60)
        assert one.topic().duplicates == {}
    check_order(writer.entries)


class ByAccount:
    """A handler that records the begin and the end of each message, by account."""

    def __init__(self, name: str, courses: dict[str, list[tuple[str, str, int]]], seconds: float) -> None:
        self._name = name
        self._courses = courses
        self._seconds = seconds
        self.handled = 0

    async def __call__(self, batch: Batch) -> None:
        for message in batch:
            course = self._courses[message.properties["account"]]
            course.append(("begin", self._name, message.queue_offset))
            await asyncio.sleep(self._seconds)
            course.append(("end", self._name, message.queue_offset))
            self.handled += 1


@behaviour(
    "orderly",
    (
        "Messages of one value are handled in order and one at a time, other messages of their queue in "
        "parallel (`order_by`)"
    ),
    java="not available: a group is concurrent, or handles one batch of a queue at a time",
    rmqd="in concurrent and orderly groups",
    checked=("64 accounts in 4 queues that move between two members and back: each account's order, no message twice"),
)
@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
async def test_accounts_keep_their_order_while_queues_move(rocketmq: RealCluster, group: str, mode: str) -> None:
    """Accounts of one queue are handled in parallel, and a member that leaves repeats no message."""
    topic = rocketmq.create_topic(fresh_name(group, "topic"), QUEUES)
    with Producer(rocketmq.broker.address, topic, QUEUES) as producer:
        for queue in range(QUEUES):
            accounts = [{"account": f"{queue}-{number % 16}"} for number in range(480)]
            producer.send_batch([f"{queue}.{at}" for at in range(480)], queue=queue, properties=accounts)
    courses: dict[str, list[tuple[str, str, int]]] = defaultdict(list)
    options = {**OPTIONS, "consume_mode": mode, "order_by": "property:account", "concurrency": 64}
    options |= {"subscriptions": [topic], "consume_from_where": "first_offset"}
    first, second = ByAccount("first", courses, 0.1), ByAccount("second", courses, 0.1)
    async with member(rocketmq.nameserver, first, group=group, **options) as one:
        await eventually(lambda: first.handled > 64, "the first member handles messages")
        async with member(rocketmq.nameserver, second, group=group, **options) as other:
            await eventually(lambda: owned(other) == QUEUES // 2, "the other member has half of the queues")
            await eventually(lambda: second.handled > 64, "the other one is at work", 40)
            await other.stop()
            assert other.topic().duplicates == {}
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed", 60)
        assert one.topic().duplicates == {}
    assert len(courses) == QUEUES * 16
    for course in courses.values():
        begins, ends = course[::2], course[1::2]
        assert [(who, at) for _, who, at in begins] == [(who, at) for _, who, at in ends], "two at once"
        offsets_begun = [at for _, _, at in begins]
        assert offsets_begun == sorted(set(offsets_begun))
    assert first.handled + second.handled == QUEUES * 480
