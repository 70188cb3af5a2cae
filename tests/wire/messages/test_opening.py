"""Opening compressed bodies: how much at a time, how large, and where a reply ends that is too much."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.compression import BlockDecompression
from rmqd.wire.messages.decode import frame_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.message import MessageBlock
from rmqd.wire.messages.properties import CompressionType
from tests.wire.compressing import compress, compressed_flag

KINDS = pytest.mark.parametrize("kind", CompressionType)
MIB = 1 << 20
PLAIN = StoredMessage(topic="T", body=b"plain")


def packed(size: int, kind: CompressionType, offset: int) -> bytes:
    body = compress(bytes(size), kind)
    return encode_message(replace(PLAIN, body=body, sys_flag=compressed_flag(kind), queue_offset=offset))


def framed(*records: bytes) -> MessageBlock:
    return frame_messages(b"".join(records), MessageQueue("T", "b", 0))


def sizes(block: MessageBlock) -> list[int]:
    return [len(message.body) for message in block.messages]


@KINDS
def test_a_block_takes_what_there_is_room_for(kind: CompressionType) -> None:
    """One body goes over it at most; the rest is left to another pull."""
    block = framed(*(packed(MIB, kind, at) for at in range(4)), encode_message(replace(PLAIN, queue_offset=4)))
    opening = BlockDecompression(block, 2 * MIB, MIB + MIB // 2)
    opening.rest()
    opening.finish()
    assert sizes(block) == [MIB, MIB]
    assert (block.cut_at, block.unfinished) == (2, 2)
    assert block.size_bytes == len(block.data) + 2 * MIB


@KINDS
def test_nothing_is_opened_behind_what_is_corrupt_where_that_is_the_end(kind: CompressionType) -> None:
    block = framed(packed(1, kind, 0), packed(MIB + 1, kind, 1), packed(MIB + 1, kind, 2), packed(3, kind, 3))
    opening = BlockDecompression(block, MIB, ends_at_corrupt=True)
    opening.rest()
    opening.finish()
    assert (sizes(block), block.cut_at) == ([1], 2)
    assert [corrupt.message.queue_offset for corrupt in block.corrupt] == [1]


@KINDS
def test_one_body_is_taken_whatever_the_room(kind: CompressionType) -> None:
    """Else the queue would never go on."""
    block = framed(packed(MIB, kind, 0), packed(MIB, kind, 1))
    opening = BlockDecompression(block, MIB, -5)
    opening.rest()
    opening.finish()
    assert (sizes(block), block.cut_at) == ([MIB], 1)


@KINDS
def test_a_body_above_the_limit_is_corrupt(kind: CompressionType) -> None:
    block = framed(packed(MIB, kind, 0), packed(MIB + 1, kind, 1), packed(1, kind, 2))
    opening = BlockDecompression(block, MIB)
    opening.rest()
    opening.finish()
    assert (sizes(block), block.cut_at) == ([MIB, 1], None)
    [corrupt] = block.corrupt
    assert corrupt.message.queue_offset == 1
    assert f"more than {MIB} bytes" in corrupt.reason


def test_corrupt_messages_behind_the_cut_are_left_to_the_next_pull() -> None:
    block = framed(
        packed(MIB, CompressionType.ZLIB, 0),
        packed(MIB, CompressionType.ZLIB, 1),
        encode_message(replace(PLAIN, sys_flag=0x800, queue_offset=2)),
    )
    opening = BlockDecompression(block, MIB, 0)
    opening.rest()
    opening.finish()
    assert (sizes(block), block.corrupt, block.cut_at) == ([MIB], [], 1)


@KINDS
def test_little_is_opened_at_once_and_much_is_not(kind: CompressionType) -> None:
    """By what is stored, and by what it becomes; what was opened at once is not opened again."""
    block = framed(*(packed(1000, kind, at) for at in range(32)))
    assert BlockDecompression(block).at_once()
    block = framed(packed(1000, kind, 0), packed(8 * MIB, kind, 1), packed(1000, kind, 2))
    opening = BlockDecompression(block)
    assert not opening.at_once()
    opening.rest()
    opening.finish()
    assert sizes(block) == [1000, 8 * MIB, 1000]
    assert [message.queue_offset for message in block.messages] == [0, 1, 2]


def test_a_limit_below_what_is_opened_at_once_holds_there() -> None:
    block = framed(packed(2000, CompressionType.ZSTD, 0))
    opening = BlockDecompression(block, 1000)
    assert opening.at_once()
    opening.finish()
    assert len(block.corrupt) == 1


def test_what_was_left_out_keeps_no_block_alive() -> None:
    """Else bodies that handlers are done with would wait for the garbage collector, whatever the thresholds say."""
    block = framed(packed(MIB, CompressionType.ZSTD, 0), packed(MIB, CompressionType.ZSTD, 1))
    opening = BlockDecompression(block, MIB, 0)
    opening.rest()
    assert [message.queue_offset for message in opening.finish()] == [1]
    gc.collect()
    gc.disable()
    try:
        block.messages.clear()  # as the consumer does once all of them are finished
        del block, opening
        assert gc.collect() == 0
    finally:
        gc.enable()
