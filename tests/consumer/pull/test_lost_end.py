"""Offsets that a broker assigns twice: after a restart with fewer messages, or for a recreated topic."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.message_queue import MessageQueue
from tests.client.peer import Reply
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

OLD = [b"%d" % number for number in range(6)]
QUICK: dict[str, Any] = {"poll_seconds": 0.05, "persist_consumer_offset_interval_seconds": 0.05}

pytestmark = pytest.mark.usefixtures("hasty")


async def lose_end(broker: ScriptedBroker, queue: MessageQueue, *new: bytes) -> None:
    """Restart the broker with only the first three messages, and store new ones."""
    del broker.messages[queue][3:]
    await broker.store(queue, *new, store_timestamp=2000)
    broker.peer.cut()


async def test_messages_stored_before_the_member_reconnects_are_handled(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The broker offers its end as the next offset, which is after the new messages."""
    await broker.store(queue, *OLD, store_timestamp=1000)
    async with member(broker.peer.address, seen, **QUICK):
        await broker.committed(GROUP, queue, 6)
        await lose_end(broker, queue, b"new3", b"new4")
        await seen.has(*OLD, b"new3", b"new4")
        await broker.committed(GROUP, queue, 5)


@pytest.mark.parametrize("count", [3, 9])
async def test_a_recreated_topic_is_consumed_by_a_member_that_has_pulled_nothing(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, count: int
) -> None:
    """It searches by the time at which the broker first accepted its offset."""
    await broker.store(queue, *OLD, store_timestamp=1000)
    broker.offsets[GROUP, queue] = 6
    broker.answer_pull(queue, broker.nothing(queue, ResponseCode.PULL_NOT_FOUND, 6))
    async with member(broker.peer.address, seen, **QUICK):
        await eventually(lambda: broker.pulled_offsets(queue) == [6, 6], "its offset is accepted")
        broker.messages[queue] = []
        new = [b"new%d" % number for number in range(count)]
        await broker.store(queue, *new, store_timestamp=2**41)
        broker.answer_pull(queue, Reply(ResponseCode.TOPIC_NOT_EXIST, "the topic does not exist"))
        broker.peer.cut()
        await seen.has(*new)


async def test_a_topic_recreated_during_consumption_is_consumed_from_its_start(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Although the new topic has more messages than the old one when the member notices it."""
    await broker.store(queue, *OLD, store_timestamp=1000)
    gone = Reply(ResponseCode.TOPIC_NOT_EXIST, "the topic does not exist")
    broker.answer_pull(queue, broker.found(queue, broker.records(queue), 6), gone)
    async with member(broker.peer.address, seen, **QUICK):
        await eventually(lambda: broker.pulled_offsets(queue) == [0, 6, 6], "it was missing; a pull waits at the end")
        broker.messages[queue] = []
        new = [b"new%d" % number for number in range(9)]
        await broker.store(queue, *new, store_timestamp=2000)
        await seen.has(*OLD, *new)


@pytest.mark.parametrize(
    "answer", [Reply(ext_fields={"offset": "5"}), Reply(ResponseCode.NO_PERMISSION, "you may not know")]
)
async def test_a_lost_connection_does_not_move_a_queue(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, answer: Reply
) -> None:
    """Also if the broker returns its last message for any later time, as 4.9 does, or refuses the search."""
    await broker.store(queue, *OLD, store_timestamp=1000)
    broker.peer.on(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, answer)
    async with member(broker.peer.address, seen, **QUICK) as one:
        await broker.committed(GROUP, queue, 6)
        pulls = len(broker.pulled_offsets(queue))
        broker.peer.cut()
        await eventually(lambda: len(broker.pulled_offsets(queue)) > pulls, "it is pulled again")
        await broker.store(queue, b"more", store_timestamp=1000)
        await seen.has(*OLD, b"more")
        assert broker.peer.got(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP)
        assert one.topic().falls == {"operator": 0, "corrected": 0, "take_over": 0}
