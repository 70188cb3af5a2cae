"""Decompression of a block: its steps, the size limit of a body, and the cut of a block that is too large."""

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
def test_decompression_stops_when_the_room_is_used_up(kind: CompressionType) -> None:
    """At most one body exceeds the room. The remaining messages are left to another pull."""
    block = framed(*(packed(MIB, kind, at) for at in range(4)), encode_message(replace(PLAIN, queue_offset=4)))
    opening = BlockDecompression(block, 2 * MIB, MIB + MIB // 2)
    opening.rest()
    opening.finish()
    assert sizes(block) == [MIB, MIB]
    assert (block.first_unopened_offset, block.unfinished) == (2, 2)
    assert block.size_bytes == len(block.data) + 2 * MIB


@KINDS
def test_with_ends_at_corrupt_decompression_stops_at_a_corrupt_message(kind: CompressionType) -> None:
    block = framed(packed(1, kind, 0), packed(MIB + 1, kind, 1), packed(MIB + 1, kind, 2), packed(3, kind, 3))
    opening = BlockDecompression(block, MIB, ends_at_corrupt=True)
    opening.rest()
    opening.finish()
    assert (sizes(block), block.first_unopened_offset) == ([1], 2)
    assert [corrupt.message.queue_offset for corrupt in block.corrupt] == [1]


@KINDS
def test_one_body_is_decompressed_even_without_room(kind: CompressionType) -> None:
    """Otherwise the queue would never continue."""
    block = framed(packed(MIB, kind, 0), packed(MIB, kind, 1))
    opening = BlockDecompression(block, MIB, -5)
    opening.rest()
    opening.finish()
    assert (sizes(block), block.first_unopened_offset) == ([MIB], 1)


@KINDS
def test_a_body_above_the_limit_is_corrupt(kind: CompressionType) -> None:
    block = framed(packed(MIB, kind, 0), packed(MIB + 1, kind, 1), packed(1, kind, 2))
    opening = BlockDecompression(block, MIB)
    opening.rest()
    opening.finish()
    assert (sizes(block), block.first_unopened_offset) == ([MIB, 1], None)
    [corrupt] = block.corrupt
    assert corrupt.message.queue_offset == 1
    assert f"more than {MIB} bytes" in corrupt.reason


def test_corrupt_messages_after_the_cut_are_left_to_the_next_pull() -> None:
    block = framed(
        packed(MIB, CompressionType.ZLIB, 0),
        packed(MIB, CompressionType.ZLIB, 1),
        encode_message(replace(PLAIN, sys_flag=0x800, queue_offset=2)),
    )
    opening = BlockDecompression(block, MIB, 0)
    opening.rest()
    opening.finish()
    assert (sizes(block), block.corrupt, block.first_unopened_offset) == ([MIB], [], 1)


@KINDS
def test_only_small_blocks_are_decompressed_at_once(kind: CompressionType) -> None:
    """The stored and the decompressed size count. Bodies that were decompressed at once are not decompressed again."""
    block = framed(*(packed(1000, kind, at) for at in range(32)))
    assert BlockDecompression(block).open_quickly()
    block = framed(packed(1000, kind, 0), packed(8 * MIB, kind, 1), packed(1000, kind, 2))
    opening = BlockDecompression(block)
    assert not opening.open_quickly()
    opening.rest()
    opening.finish()
    assert sizes(block) == [1000, 8 * MIB, 1000]
    assert [message.queue_offset for message in block.messages] == [0, 1, 2]


def test_at_once_respects_a_body_limit_below_its_own() -> None:
    block = framed(packed(2000, CompressionType.ZSTD, 0))
    opening = BlockDecompression(block, 1000)
    assert opening.open_quickly()
    opening.finish()
    assert len(block.corrupt) == 1


def test_messages_left_to_the_next_pull_do_not_keep_the_block_alive() -> None:
    """Otherwise only the garbage collector would free bodies of finished messages, despite the memory thresholds."""
    block = framed(packed(MIB, CompressionType.ZSTD, 0), packed(MIB, CompressionType.ZSTD, 1))
    opening = BlockDecompression(block, MIB, 0)
    opening.rest()
    assert [message.queue_offset for message in opening.finish()] == [1]
    gc.collect()
    gc.disable()
    try:
        block.messages.clear()  # as the consumer does when all messages are finished
        del block, opening
        assert gc.collect() == 0
    finally:
        gc.enable()
