"""Priority topics (message.type=PRIORITY): which queue brokers choose."""

from __future__ import annotations

import asyncio

import pytest

from rmqd.client.sending.outgoing_message import OutgoingMessage
from tests.conformance import behaviour
from tests.consumer.members import member
from tests.rocketmq import RealCluster
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.seen import Seen

QUEUES = 4
PRIORITIES = 6  # two more than there are queues
EACH = 4
PRIORITY = "_SYS_MSG_PRIORITY_"  # Java: MessageConst.PROPERTY_PRIORITY, set by Message.setPriority


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
