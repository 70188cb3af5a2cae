"""What becomes of messages that are corrupt: on the way, or as they are stored."""

from __future__ import annotations

import pytest

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import CompressionType, compressed_flag
from tests.client.peer import Reply
from tests.consumer.groups import GROUP, group_options
from tests.consumer.members import member
from tests.consumer.pull.test_corrupt import DAMAGES, OFTEN
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("hasty")


async def test_corrupt_messages_that_are_held_together_count_once_each(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Also where another policy looks at them again."""
    await broker.store(queue, b"good0")
    await broker.store(queue, b"bad1", b"bad2", sys_flag=compressed_flag(CompressionType.ZLIB))
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.CONSUMER_SEND_MSG_BACK):
        broker.peer.on(code, Reply(ResponseCode.SYSTEM_BUSY, "not now"))
    async with member(broker.peer.address, seen, on_corrupt_message="dead_letter", **OFTEN) as m:
        await broker.peer.received(RequestCode.SEND_MESSAGE_V2, 1)
        await m.consumer.change(group_options(on_corrupt_message="stop", **OFTEN))
        pulled = len(broker.pulls)
        await eventually(lambda: len(broker.pulls) >= pulled + 3, "it is looked whether an operator moved the queue")
        await m.consumer.change(group_options(on_corrupt_message="skip", **OFTEN))
        await broker.committed(GROUP, queue, 3)
        assert m.topic().handled["corrupt"] == 2


async def test_another_policy_is_heard_while_no_broker_takes_a_corrupt_message(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """To `stop` and to `skip`."""
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


async def test_a_reset_reaches_a_queue_whose_corrupt_message_nobody_takes(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """It is asked for while the dead letter is tried again and again."""
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
