"""Messages that are corrupt in transit, or as they are stored."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import CompressionType
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, TOPIC, group_options
from tests.consumer.members import member
from tests.consumer.pull.test_corrupt import DAMAGES, OFTEN, each_damage
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually
from tests.wire.compressing import compressed_flag

pytestmark = pytest.mark.usefixtures("hasty")


async def test_corrupt_messages_that_are_held_together_count_once_each(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Even if another policy checks them again."""
    await broker.store(queue, b"good0")
    await broker.store(queue, b"bad1", b"bad2", sys_flag=compressed_flag(CompressionType.ZLIB))
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.CONSUMER_SEND_MSG_BACK):
        broker.peer.on(code, Reply(ResponseCode.SYSTEM_BUSY, "not now"))
    async with member(broker.peer.address, seen, on_corrupt_message="dead_letter", **OFTEN) as m:
        await broker.peer.received(RequestCode.SEND_MESSAGE_V2, 1)
        await m.consumer.change(group_options(on_corrupt_message="stop", **OFTEN))
        pulled = len(broker.pulls)
        await eventually(lambda: len(broker.pulls) >= pulled + 3, "the queue is polled for a reset")
        await m.consumer.change(group_options(on_corrupt_message="skip", **OFTEN))
        await broker.committed(GROUP, queue, 3)
        assert m.topic().handled["corrupt"] == 2


async def test_a_policy_change_applies_while_no_broker_accepts_a_corrupt_message(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The policy changes to `stop`, then to `skip`."""
    await broker.store(queue, b"good0", b"bad1", b"good2")
    broker.damage(queue, 1, DAMAGES["crc"])
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.CONSUMER_SEND_MSG_BACK):
        broker.peer.on(code, Reply(ResponseCode.SYSTEM_BUSY, "not now"))
    async with member(broker.peer.address, seen, on_corrupt_message="dead_letter", **OFTEN) as m:
        await broker.peer.received(RequestCode.SEND_MESSAGE_V2, 1)
        await m.consumer.change(group_options(on_corrupt_message="stop", **OFTEN))
        await eventually(
            lambda: (q := m.queue()) and q.stall is None and q.state == "stuck" and m.queue(), "it is stuck"
        )
        await broker.committed(GROUP, queue, 1)
        await m.consumer.change(group_options(on_corrupt_message="skip", **OFTEN))
        await broker.committed(GROUP, queue, 3)
        await broker.store(queue, b"good3")
        await seen.has(b"good0", b"good2", b"good3")
    assert not broker.sent


async def test_a_reset_applies_while_no_broker_accepts_a_corrupt_message(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """The member polls for it while it retries to send the dead letter."""
    await broker.store(queue, b"good0", b"bad1", b"good2")
    broker.damage(queue, 1, DAMAGES["crc"])
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.CONSUMER_SEND_MSG_BACK):
        broker.peer.on(code, Reply(ResponseCode.SYSTEM_BUSY, "not now"))
    async with member(broker.peer.address, seen, on_corrupt_message="dead_letter"):
        await broker.peer.received(RequestCode.SEND_MESSAGE_V2, 1)
        await seen.has(b"good0", b"good2")
        broker.answer_pull(queue, broker.nothing(queue, ResponseCode.PULL_OFFSET_MOVED, 2, "OFFSET_RESET"))
        await seen.has(b"good0", b"good2", b"good2")
    assert not broker.sent


@pytest.mark.parametrize("cut", [1, 60])
async def test_the_complete_messages_of_a_truncated_reply_are_used(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, cut: int
) -> None:
    """The rest is pulled again."""
    await broker.store(queue, b"0", b"1", b"2")
    broker.answer_pull(queue, broker.found(queue, broker.records(queue)[:-cut], 3))
    async with member(broker.peer.address, seen) as m:
        await seen.has(b"0", b"1", b"2")
        assert m.client.snapshot().corrupt_frames == 0
    assert broker.pulled_offsets(queue)[:2] == [0, 2]
    assert broker.peer.connections == 1


@each_damage
async def test_a_corrupt_message_affects_only_its_own_queue(
    broker: ScriptedBroker, seen: Seen, change: Callable[[bytes], bytes]
) -> None:
    """The connection to the broker is not closed, so no other request must be repeated."""
    bad, good = broker.create_topic(TOPIC, queues=2)
    await broker.store(bad, b"bad1")
    broker.damage(bad, 0, change)
    async with member(broker.peer.address, seen, **OFTEN) as m:
        await eventually(lambda: (q := m.queue(0)) and q.state == "stuck", "the queue is stuck")
        await broker.store(good, b"0", b"1")
        await seen.has(b"0", b"1")
        await eventually(lambda: len(broker.pulled_offsets(bad)) > 5, "the bad queue is polled again and again")
        assert m.client.snapshot().corrupt_frames == 0
    assert broker.peer.connections == 1
    assert broker.pulled_offsets(good) == [0, 1, 2] or broker.pulled_offsets(good) == [0, 2]
