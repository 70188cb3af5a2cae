"""Priority topics (message.type=PRIORITY): the order of delivery, compared with Java."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from rmqd.client.sending.outgoing_message import OutgoingMessage
from rmqd.consumer.handling.batch_worker import TIME_SLICE_SECONDS
from rmqd.handler_api.batch import Batch
from tests.conformance import behaviour
from tests.consumer.members import member
from tests.rocketmq import RealCluster, ledger
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.offsets import stored
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

QUEUES = 4
PRIORITIES = 6  # two more than there are queues
EACH = 4
PRIORITY = "_SYS_MSG_PRIORITY_"  # Java: MessageConst.PROPERTY_PRIORITY, set by Message.setPriority

pytestmark = [pytest.mark.rocketmq, pytest.mark.slow]


@pytest.fixture
def priority_topic(rocketmq: RealCluster, request: pytest.FixtureRequest) -> str:
    """A topic in which each message has one of six priorities, its key being the message's number."""
    topic = rocketmq.create_topic(fresh_name(request.node.name, "topic"), QUEUES, message_type="PRIORITY")
    with Producer(rocketmq.broker.address, topic, QUEUES) as producer:
        for number in range(PRIORITIES * EACH):
            priority = number % PRIORITIES
            queue, _ = producer.send(key=f"{number}", properties={PRIORITY: f"{priority}"})
            assert queue == min(priority, QUEUES - 1)
    return topic


def in_queues(keys: list[str]) -> list[int]:
    """The queues of the messages with these keys, one after the other."""
    return [min(int(key) % PRIORITIES, QUEUES - 1) for key in keys]


@behaviour(
    "pop",
    "In a priority topic (message.type=PRIORITY), messages of the highest priority are popped first",
    java=("by queue: the broker stores priority N in queue N, or in the last queue, and pops the last queue first"),
    rmqd="the same",
    checked=(
        "compared with a Java consumer that pops: the order in which one slow thread receives 24 messages of six "
        "priorities"
    ),
    since="5.5",
)
async def test_the_highest_priority_is_popped_first(
    rocketmq: RealCluster, priority_topic: str, group: str, tmp_path: Path
) -> None:
    seen, theirs, java = Seen(), tmp_path / "java", fresh_name("java", "group")

    async def slowly(batch: Batch) -> None:
        await seen(batch)
        await asyncio.sleep(TIME_SLICE_SECONDS * 2)

    for name in (group, java):
        rocketmq.set_consume_mode(priority_topic, name, "POP")
    options: dict[str, Any] = {"consume_mode": "pop", "consume_from_where": "first_offset", "concurrency": 1}

    def begun() -> list[str]:
        return [entry.key for entry in ledger.read(theirs) if entry.event == ledger.START]

    # a pop before all messages are in queues would receive the missing ones after messages of lower priority
    await eventually(lambda: sum(stored(rocketmq, priority_topic).values()) == PRIORITIES * EACH, "all are in queues")
    with start_consumer(PeerOptions(rocketmq.nameserver, priority_topic, theirs), java, pop=True, threads=1):
        async with member(rocketmq.nameserver, slowly, group=group, subscriptions=[priority_topic], **options):
            await eventually(lambda: len(seen.keys) == len(begun()) == PRIORITIES * EACH, "all are handled", 60)
    assert seen.keys == begun()
    assert in_queues(seen.keys) == sorted(in_queues(seen.keys), reverse=True)


@behaviour(
    "messages",
    "In a priority topic, a group that pulls gets all queues in parallel, whatever their priority",
    java=("queues are pulled like those in any topic; Message.getPriority reads the property _SYS_MSG_PRIORITY_"),
    rmqd="the same; the handler sees the property",
    checked="compared with a Java consumer: the messages, and the order in each queue",
    since="5.5",
)
async def test_a_group_that_pulls_ignores_priorities(
    rocketmq: RealCluster, priority_topic: str, group: str, tmp_path: Path
) -> None:
    seen, theirs = Seen(), tmp_path / "java"
    options: dict[str, Any] = {"subscriptions": [priority_topic], "consume_from_where": "first_offset"}
    with start_consumer(PeerOptions(rocketmq.nameserver, priority_topic, theirs), fresh_name("java", "group")):
        async with member(rocketmq.nameserver, seen, group=group, consume_mode="orderly", **options):

            def java() -> list[str]:
                return [entry.key for entry in ledger.read(theirs) if entry.event == ledger.FINISH]

            await eventually(lambda: len(seen.keys) == len(java()) == PRIORITIES * EACH, "all are handled", 60)
    assert Counter(seen.keys) == Counter(java())
    assert all(one.properties[PRIORITY] == str(int(one.key) % PRIORITIES) for one in seen.attempts)
    for queue in range(QUEUES):
        numbers = [int(one.key) for one in seen.attempts if one.queue.queue_id == queue]
        assert numbers == sorted(numbers)


@behaviour(
    "sending",
    "With a priority the broker chooses the queue",
    java="Message.setPriority",
    rmqd="--property _SYS_MSG_PRIORITY_=N; the output names the queue that the broker chose",
    checked="the queues in which the broker stored messages of six priorities",
    since="5.5",
)
async def test_a_priority_chooses_the_queue(rocketmq: RealCluster, priority_topic: str, group: str) -> None:
    async with member(rocketmq.nameserver, Seen(), group=group, subscriptions=[priority_topic]) as m:
        for priority in range(PRIORITIES):
            message = OutgoingMessage(priority_topic, b"x", properties={PRIORITY: str(priority)})
            result = await asyncio.wait_for(m.client.producer.send(message), 10)
            assert result.queue.queue_id == min(priority, QUEUES - 1)
