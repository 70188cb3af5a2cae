"""Compressed bodies: how much of a reply is decompressed at a time, and bodies that are too large."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from rmqd.consumer.pull.accept import decompress_bodies
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.properties import CompressionType
from tests.consumer.blocks import with_bit_flipped
from tests.consumer.groups import GROUP
from tests.consumer.members import member
from tests.consumer.pop.popping import popping
from tests.consumer.pull.test_opening import KINDS, MIB, Sizes, store
from tests.consumer.scripted_broker import ScriptedBroker
from tests.waiting import eventually
from tests.wire.compressing import compress, compressed_flag

pytestmark = pytest.mark.usefixtures("hasty")


@pytest.mark.slow
@KINDS
async def test_many_bodies_that_are_too_large_cost_one_more_pull(
    broker: ScriptedBroker, queue: MessageQueue, kind: CompressionType
) -> None:
    """Not one for each, because earlier bodies would be decompressed again for each of them."""
    seen = Sizes()
    await store(broker, queue, kind, *[10, *[MIB + 1] * 20, 20, *[MIB + 1] * 9, 30])
    options: dict[str, Any] = {"max_body_size_bytes": MIB, "on_corrupt_message": "skip"}
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05, **options) as m:
        await broker.committed(GROUP, queue, 32)
        assert m.topic().handled["corrupt"] == 29
        assert m.client.snapshot().doubted_replies == 1
    assert sorted(seen.sizes) == [10, 20, 30]
    assert broker.pulled_offsets(queue)[:3] == [0, 1, 32]


@KINDS
async def test_the_event_loop_continues_during_a_large_decompression(kind: CompressionType) -> None:
    """Otherwise one reply would delay all groups, heartbeats and probes."""
    stored = StoredMessage(topic="T", body=compress(bytes(8 * MIB), kind), sys_flag=compressed_flag(kind))
    records = b"".join(encode_message(replace(stored, queue_offset=at)) for at in range(2))
    block = frame_messages(records, MessageQueue("T", "b", 0))
    opening = asyncio.create_task(decompress_bodies(block, 16 * MIB))
    await asyncio.sleep(0)  # the decompression has begun
    assert not opening.done()
    await opening
    assert [len(message.body) for message in block.messages] == [8 * MIB] * 2


async def test_bodies_that_are_too_large_among_damaged_records_are_skipped(
    broker: ScriptedBroker, queue: MessageQueue
) -> None:
    """The evidence for one of them is kept while another is checked."""
    seen = Sizes()
    await store(broker, queue, CompressionType.ZLIB, 10, MIB + 1, 20, MIB + 1, MIB + 1, 30, 40)
    for damaged in (2, 5):
        broker.damage(queue, damaged, partial(with_bit_flipped, at=90))
    options: dict[str, Any] = {"max_body_size_bytes": MIB, "on_corrupt_message": "skip"}
    async with member(broker.peer.address, seen, persist_consumer_offset_interval_seconds=0.05, **options) as m:
        await broker.committed(GROUP, queue, 7)
        assert m.topic().handled["corrupt"] == 5
    assert sorted(seen.sizes) == [10, 40]


@KINDS
async def test_popped_messages_are_decompressed_as_far_as_there_is_room(kind: CompressionType) -> None:
    """The rest follows once handlers finish. No message is handled twice, and a body that is too large is corrupt."""
    seen = Sizes()
    sizes = [*[2 * MIB] * 10, 3 * MIB + 1]
    async with popping(queues=1) as pop:
        flag = compressed_flag(kind)
        await pop.send(*[compress(bytes(size), kind) for size in sizes], sys_flag=flag)
        options: dict[str, Any] = {"max_body_size_bytes": 3 * MIB, "on_corrupt_message": "skip"}
        async with pop.member(seen, pull_threshold_size_for_queue_bytes=5 * MIB, **options) as one:
            await eventually(lambda: len(seen.sizes) >= 10, "all are handled")
            await eventually(pop.hides_nothing, "no message will be redelivered")
            assert one.topic().handled["corrupt"] == 1
    assert seen.sizes == [2 * MIB] * 10
