"""Messages that are corrupted in transit or in the broker's store."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from structlog.testing import capture_logs

from rmqd.codes import RequestCode, ResponseCode
from rmqd.consumer.consumer_options import OnCorruptMessage
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import encode_message
from tests.client.peer import Reply
from tests.consumer.blocks import corrupted, with_bit_flipped
from tests.consumer.groups import GROUP, TOPIC
from tests.consumer.members import member
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

OFTEN: dict[str, Any] = {"persist_consumer_offset_interval_seconds": 0.05}
TOTAL_SIZE_AT, BODY_SIZE_AT = 2, 86  # the bytes of a record whose bits are worth 256 to 32,768

# a changed body, parts longer than their record, a wrong magic number, and a wrong record size
DAMAGES = {
    "crc": partial(corrupted, body=b"bad1"),
    "parts": partial(with_bit_flipped, at=BODY_SIZE_AT),
    "magic": partial(with_bit_flipped, at=4),
    "size": partial(with_bit_flipped, at=TOTAL_SIZE_AT),
}
each_damage = pytest.mark.parametrize("change", DAMAGES.values(), ids=DAMAGES)

pytestmark = pytest.mark.usefixtures("hasty")


def damaged_reply(broker: ScriptedBroker, queue: MessageQueue, change: Callable[[bytes], bytes], at: int) -> Reply:
    """All stored messages, one of them damaged in transit."""
    records = [encode_message(message) for message in broker.messages[queue]]
    records[at] = change(records[at])
    return broker.found(queue, b"".join(records), len(records))


@pytest.mark.parametrize("policy", ["stop", "skip", "dead_letter"])
@each_damage
async def test_a_message_damaged_in_transit_is_pulled_again(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, change: Callable[[bytes], bytes], policy: OnCorruptMessage
) -> None:
    """Earlier messages are handled at once, nothing is dead-lettered, and the connection stays open."""
    await broker.store(queue, b"good0", b"bad1", b"good2")
    broker.answer_pull(queue, damaged_reply(broker, queue, change, 1))
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, on_corrupt_message=policy, **OFTEN) as m:
            await seen.has(b"good0", b"bad1", b"good2")
            await broker.committed(GROUP, queue, 3)
            assert m.topic().handled["corrupt"] == 0
            assert (m.client.snapshot().corrupt_frames, m.client.snapshot().doubted_replies) == (0, 1)
    assert broker.pulled_offsets(queue)[:2] == [0, 1]
    assert (broker.peer.connections, broker.sent) == (1, [])
    [entry] = [entry for entry in logs if entry["event"] == "pull.doubted"]
    assert (entry["offset"], entry["log_level"]) == (1, "warning")


@each_damage
async def test_a_corrupt_message_stops_its_queue(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, change: Callable[[bytes], bytes]
) -> None:
    """With `on_corrupt_message: stop` earlier messages are handled, and the corrupt one is reported once."""
    await broker.store(queue, b"good0", b"bad1", b"good2")
    broker.damage(queue, 1, change)
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, **OFTEN) as m:
            await eventually(lambda: len(broker.pulled_offsets(queue)) >= 5, "it is pulled again")
            await broker.committed(GROUP, queue, 1)
            status = m.queue()
            assert status is not None
            assert (status.state, status.position) == ("stuck", 1)
            assert seen.bodies == [b"good0"]
            assert m.topic().handled["corrupt"] == 1
            broker.damaged.clear()
            await seen.has(b"good0", b"bad1", b"good2")  # once the broker has repaired it
            assert (broker.peer.connections, m.client.snapshot().corrupt_frames) == (1, 0)
    assert len([entry for entry in logs if entry["event"] == "message.corrupt"]) == 1


@each_damage
async def test_a_corrupt_message_is_skipped_if_configured(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, change: Callable[[bytes], bytes]
) -> None:
    """The skip is logged, and no other message is skipped."""
    await broker.store(queue, b"good0", b"bad1", b"good2", b"good3")
    broker.damage(queue, 1, change)
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, on_corrupt_message="skip", **OFTEN) as m:
            await seen.has(b"good0", b"good2", b"good3")
            await broker.committed(GROUP, queue, 4)
            assert m.topic().handled["corrupt"] == 1
    [entry] = [entry for entry in logs if entry["event"] == "message.corrupt"]
    assert (entry["offset"], entry["on_corrupt_message"]) == (1, "skip")


@each_damage
async def test_a_corrupt_message_is_dead_lettered_if_configured(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, change: Callable[[bytes], bytes]
) -> None:
    """It is counted as corrupt once. Until a broker accepts the dead letter, the other messages of the response are
    handled, and no commit passes the corrupt one.
    """
    await broker.store(queue, b"good0", b"bad1", b"good2")
    broker.damage(queue, 1, change)
    for code in (RequestCode.SEND_MESSAGE_V2, RequestCode.CONSUMER_SEND_MSG_BACK):
        broker.peer.on(code, Reply(ResponseCode.SYSTEM_BUSY, "not now"))
    async with member(broker.peer.address, seen, on_corrupt_message="dead_letter", **OFTEN) as m:
        await broker.peer.received(RequestCode.SEND_MESSAGE_V2, 3)
        await eventually(lambda: b"good0" in seen.bodies, "the earlier message is handled")
        if DAMAGES["size"] is not change:  # its end is unknown, so later messages must be pulled again
            await eventually(lambda: b"good2" in seen.bodies, "the later message is handled")
        assert max(broker.commits_of(queue)) <= 1
        broker.peer.on(RequestCode.SEND_MESSAGE_V2, broker.send)
        await seen.has(b"good0", b"good2")
        await broker.committed(GROUP, queue, 3)
        assert m.topic().handled["corrupt"] == 1
        assert m.topic().dead_letters["corrupt"] == 1
    [sent] = broker.sent
    assert sent.header.topic == f"%DLQ%{GROUP}"
    assert sent.properties["RMQD_REASON"]
    assert sent.properties["RETRY_TOPIC"] == TOPIC
