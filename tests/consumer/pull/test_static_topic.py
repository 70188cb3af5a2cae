"""Consumption of a static topic, whose logical queues may be on any broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.handler_api.batch import Batch
from rmqd.wire.bodies.route_data import TopicQueueMappingInfo
from rmqd.wire.headers.pull_headers import PullMessageResponseHeader
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import StoredMessage, encode_message
from tests.client.peer import Peer, Reply
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen

pytestmark = pytest.mark.usefixtures("hasty", "unpaced")

LOGICAL = "__syslo__global__"


def led_by(broker: str, epoch: int, *queue_ids: int, total: int = 1) -> TopicQueueMappingInfo:
    return TopicQueueMappingInfo(broker, total, epoch, curr_id_map=dict.fromkeys(queue_ids, 0))


def ends(offered: int, end: int) -> dict[str, str]:
    """The fields of a response without messages, for a queue that starts at 0."""
    return PullMessageResponseHeader(offered, 0, end).ext_fields()


@pytest.fixture
async def other() -> AsyncIterator[Peer]:
    """Another broker, which answers no request until a test sets a reply."""
    async with Peer() as peer:
        yield peer


async def test_logical_queues_are_pulled_from_their_leader(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """They have the logical broker name, as in all clients. Offsets are stored at the leader too."""
    broker.lead(TOPIC, led_by("a", 1, 0, 1, total=2))
    broker.messages[MessageQueue(TOPIC, "a", 1)] = []
    await broker.store(queue, b"0", b"1")
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
        await seen.has(b"0", b"1")
        await broker.committed(GROUP, queue, 2)
        assert {(one.broker, one.queue) for one in m.consumer.snapshot().queues if not one.is_retry} == {
            (LOGICAL, 0),
            (LOGICAL, 1),
        }
    assert {pull.bname for pull in broker.pulls if pull.topic == TOPIC} <= {LOGICAL}


async def test_message_offsets_are_offsets_of_the_logical_queue(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The broker's own queue has other offsets. The response contains the difference."""
    broker.lead(TOPIC, led_by("a", 1, 0))
    broker.offsets[GROUP, queue] = 1000
    records = b"".join(
        encode_message(StoredMessage(topic=TOPIC, body=body, queue_offset=at)) for at, body in enumerate([b"0", b"1"])
    )
    found = broker.found(queue, records, 1002)
    fields = {**found.ext_fields, "offsetDelta": "1000", "maxOffset": "1002"}
    broker.answer_pull(queue, replace(found, ext_fields=fields), None)
    offsets: list[int] = []

    async def handle(batch: Batch) -> None:
        await seen(batch)
        offsets.extend(message.queue_offset for message in batch)

    async with member(broker.peer.address, handle, persist_consumer_offset_interval_seconds=0.05):
        await seen.has(b"0", b"1")
        await broker.committed(GROUP, queue, 1002)
    assert sorted(offsets) == [1000, 1001]


async def test_a_moved_queue_is_pulled_from_its_new_broker(
    broker: ScriptedBroker, queue: MessageQueue, other: Peer, seen: Seen
) -> None:
    """The old broker responds that it is not the leader, so the route is queried at once."""
    moved = ScriptedBroker(other, "b")
    moved.create_topic(TOPIC)
    there = MessageQueue(TOPIC, "b", 0)
    broker.lead(TOPIC, led_by("a", 1, 0), others={"b": other})
    await broker.store(queue, b"0")
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05):
        await seen.has(b"0")
        await broker.committed(GROUP, queue, 1)
        await moved.store(there, b"0", b"1", b"2")
        broker.lead(TOPIC, led_by("a", 1, 0), led_by("b", 2, 0), others={"b": other})
        broker.peer.on(RequestCode.PULL_MESSAGE, Reply(ResponseCode.NOT_LEADER_FOR_QUEUE, "not here"))
        await broker.store(queue, b"1")  # answers the pull that is held
        await seen.has(b"0", b"1", b"2")
        await moved.committed(GROUP, there, 3)
