"""What becomes of messages that are corrupt, and of frames."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.wire.message import MessageQueue
from rmqd.wire.message_encode import encode_message
from tests.client.peer import Reply, eventually
from tests.consumer.blocks import corrupted
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.consumer.seen import Seen

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.mark.parametrize("cut", [1, 60])
async def test_a_corrupt_frame_closes_the_connection_and_the_queue_goes_on(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, cut: int
) -> None:
    """It is counted and logged; what it held is pulled again."""
    await broker.store(queue, b"0", b"1", b"2")
    records = broker.records(queue)
    broker.answer_pull(queue, broker.found(queue, records[:-cut], 3))
    with capture_logs() as logs:
        async with member(broker.peer.address, seen) as m:
            await seen.has(b"0", b"1", b"2")
            assert m.client.snapshot().corrupt_frames == 1
    assert [entry["log_level"] for entry in logs if entry["event"] == "frame.corrupt"] == ["error"]
    assert broker.pulled_offsets(queue)[:2] == [0, 0]
    assert broker.peer.connections >= 2


def with_corrupt_message(broker: ScriptedBroker, queue: MessageQueue, at: int) -> Reply:
    """All stored messages, of which one fails its CRC."""
    records = [encode_message(message) for message in broker.messages[queue]]
    records[at] = corrupted(records[at], broker.messages[queue][at].body)
    return broker.found(queue, b"".join(records), len(records))


async def test_a_corrupt_message_stops_its_queue(broker: ScriptedBroker, queue: MessageQueue, seen: Seen) -> None:
    """`on_corrupt_message: stop`: what stands before it is handled and committed, it is shown and counted once."""
    await broker.store(queue, b"good0", b"bad1", b"good2")
    corrupt = with_corrupt_message(broker, queue, 1)
    rest = broker.found(queue, corrupt.body[len(broker.records(queue, 0, 1)) :], 3)
    broker.answer_pull(queue, corrupt, *[rest] * 3)
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05) as m:
            await eventually(lambda: len(broker.pulled_offsets(queue)) >= 4, "it is looked at again")
            await broker.committed(GROUP, queue, 1)
            status = m.queue()
            assert status is not None
            assert (status.state, status.position) == ("stuck", 1)
            assert seen.bodies == [b"good0"]
            assert m.topic().handled["corrupt"] == 1
            await seen.has(b"good0", b"bad1", b"good2")  # once the broker has mended it
    assert len([entry for entry in logs if entry["event"] == "message.corrupt"]) == 1


async def test_a_corrupt_message_is_skipped_where_that_is_wanted(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Never silently."""
    await broker.store(queue, b"good0", b"bad1", b"good2")
    broker.answer_pull(queue, with_corrupt_message(broker, queue, 1))
    with capture_logs() as logs:
        async with member(
            broker.peer.address, seen, on_corrupt_message="skip", persist_consumer_offset_interval_seconds=0.05
        ) as m:
            await seen.has(b"good0", b"good2")
            await broker.committed(GROUP, queue, 3)
            assert m.topic().handled["corrupt"] == 1
    [entry] = [entry for entry in logs if entry["event"] == "message.corrupt"]
    assert (entry["offset"], entry["on_corrupt_message"]) == (1, "skip")


async def test_a_corrupt_message_becomes_a_dead_letter_where_that_is_wanted(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Its queue waits until a broker took it; it counts as corrupt, once."""
    await broker.store(queue, b"good0", b"bad1", b"good2")
    broker.answer_pull(queue, with_corrupt_message(broker, queue, 1))
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.CONSUMER_SEND_MSG_BACK):
        broker.peer.on(code, Reply(ResponseCode.SYSTEM_BUSY, "not now"))
    async with member(
        broker.peer.address, seen, on_corrupt_message="dead_letter", persist_consumer_offset_interval_seconds=0.05
    ) as m:
        await broker.peer.received(RequestCode.SEND_MESSAGE_V2, 3)
        assert not seen.bodies
        broker.peer.on(RequestCode.SEND_MESSAGE_V2, broker.send)
        await seen.has(b"good0", b"good2")
        await broker.committed(GROUP, queue, 3)
        assert m.topic().handled["corrupt"] == 1
    [sent] = broker.sent
    assert sent.header.topic == f"%DLQ%{GROUP}"
    assert "CRC" in sent.properties["RMQD_REASON"]


async def test_a_reset_reaches_a_queue_whose_corrupt_message_nobody_takes(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """It is asked for while the dead letter is tried again and again."""
    await broker.store(queue, b"good0", b"bad1", b"good2")
    broker.answer_pull(
        queue,
        with_corrupt_message(broker, queue, 1),
        broker.nothing(queue, ResponseCode.PULL_OFFSET_MOVED, 2, "OFFSET_RESET"),
    )
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.CONSUMER_SEND_MSG_BACK):
        broker.peer.on(code, Reply(ResponseCode.SYSTEM_BUSY, "not now"))
    async with member(broker.peer.address, seen, on_corrupt_message="dead_letter"):
        await seen.has(b"good2")
    assert not broker.sent
