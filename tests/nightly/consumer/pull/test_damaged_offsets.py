"""Offsets in pull replies that contradict themselves or the pull: no message is lost."""

from __future__ import annotations

from functools import partial

import pytest
from structlog.testing import capture_logs

from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.encode import encode_message
from tests.consumer.blocks import corrupted, with_bit_flipped
from tests.consumer.groups import GROUP, TOPIC, Blocked
from tests.consumer.members import member
from tests.consumer.pull.test_damaged_offsets import OFTEN, RETRY_IMMEDIATELY, bodies
from tests.consumer.scripted_broker import ScriptedBroker
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.usefixtures("hasty")


LOW_BYTE_OF_OFFSET = 27


@pytest.mark.parametrize("bit", [0, 2, 7])
@pytest.mark.parametrize("at", [0, 1, 3])
async def test_a_wrong_offset_of_a_record_loses_no_message(
    broker: ScriptedBroker, queue: MessageQueue, at: int, bit: int
) -> None:
    """Nothing is committed while all messages are in flight, and each is committed under its own offset."""
    await broker.store(queue, *bodies(0, 4))
    records = [encode_message(message) for message in broker.messages[queue]]
    records[at] = with_bit_flipped(records[at], LOW_BYTE_OF_OFFSET, bit)
    broker.answer_pull(queue, broker.found(queue, b"".join(records), 4))
    handle = Blocked()
    async with member(broker.peer.address, handle, **OFTEN) as m:
        await eventually(lambda: (q := m.queue()) and q.handling == 4, "all are in flight")
        assert not set(broker.commits_of(queue)) - {0}
        handle.release.set()
        await broker.committed(GROUP, queue, 4)
        assert (m.topic().received, m.client.snapshot().doubted_replies) == (4, 1)


@pytest.mark.parametrize("mended", [True, False])
async def test_a_corrupt_message_with_a_wrong_offset_stops_the_queue_at_its_place(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen, mended: bool
) -> None:
    """A stop at the offset that the record contains would skip the message."""
    await broker.store(queue, *bodies(0, 4))
    broker.damage(queue, 1, lambda record: with_bit_flipped(corrupted(record, b"m1"), LOW_BYTE_OF_OFFSET, 1))
    async with member(broker.peer.address, seen, **OFTEN) as m:
        await eventually(lambda: (q := m.queue()) and q.state == "stuck", "it stops")
        await broker.committed(GROUP, queue, 1)
        assert (status := m.queue()) is not None
        assert (status.position, seen.bodies) == (1, [b"m0"])
        broker.damage(queue, 1, bytes if mended else partial(corrupted, body=b"m1"))
        if mended:
            await seen.has(*bodies(0, 4))
        else:
            await eventually(lambda: len(broker.pulled_offsets(queue)) > 6, "it is pulled again")
            assert seen.bodies == [b"m0"]


async def test_only_the_message_that_is_stored_under_a_wrong_offset_is_skipped(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """It counts as corrupt: another message has its offset."""
    await broker.store(queue, *bodies(0, 5))
    broker.damage(queue, 1, partial(with_bit_flipped, at=LOW_BYTE_OF_OFFSET, bit=6))
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, on_corrupt_message="skip", concurrency=1, **OFTEN):
            await seen.has(b"m0", *bodies(2, 5))
            await broker.committed(GROUP, queue, 5)
    [entry] = [entry for entry in logs if entry["event"] == "message.corrupt"]
    assert entry["offset"] == 1
    assert "offset 65 does not fit its place" in entry["reason"]


async def test_a_filtered_queue_is_pulled_twice_only_after_an_unusual_step(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """Brokers scan the same number of offsets for each pull, up to the queue's end."""
    await broker.store(queue, *[b"x"] * 4000, properties={"TAGS": "b"})
    broker.offsets[GROUP, queue] = 0
    broker.answer_pull(
        queue,
        *[broker.nothing(queue, RETRY_IMMEDIATELY, offset) for offset in (800, 800, 1600, 2400, 2912, 3200, 4000)],
    )
    async with member(broker.peer.address, seen, subscriptions={TOPIC: "a"}, **OFTEN):
        await broker.committed(GROUP, queue, 4000)
    assert broker.pulled_offsets(queue)[:9] == [0, 0, 800, 1600, 2400, 2400, 2912, 4000][:9]


async def test_gaps_are_believed_if_the_broker_returns_them_twice(
    broker: ScriptedBroker, queue: MessageQueue, seen: Seen
) -> None:
    """As in a compacted topic. All gaps of a reply together cost one more pull."""
    await broker.store(queue, *bodies(0, 40))
    kept = [0, 3, 4, 9, 20]

    def answer(low: int) -> bytes:
        return b"".join(broker.records(queue, offset, offset + 1) for offset in kept if offset >= low)

    broker.answer_pull(queue, *[broker.found(queue, answer(low), 30) for low in (0, 1)])
    with capture_logs() as logs:
        async with member(broker.peer.address, seen, concurrency=1, **OFTEN):
            await seen.has(*[b"m%d" % offset for offset in kept], *bodies(30, 40))
            await broker.committed(GROUP, queue, 40)
    gaps = [(entry["offset"], entry["missing"]) for entry in logs if entry["event"] == "queue.gap_found"]
    assert gaps == [(1, 2), (5, 4), (10, 10), (21, 9)]
    assert broker.pulled_offsets(queue)[:3] == [0, 1, 30]
