"""Batches that a broker stores as one record, and their members in a pull response."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from rmqd.consumer.handling.send_back import copied_properties
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.compression import BlockDecompression
from rmqd.wire.messages.decode import decode_messages, frame_messages
from rmqd.wire.messages.encode import BatchMember, StoredMessage, encode_batch, encode_message
from rmqd.wire.messages.message import MessageBlock
from rmqd.wire.messages.properties import INNER_BATCH, NEED_UNWRAP, CompressionType
from tests.wire.batch_records import batch_of

QUEUE = MessageQueue("T", "b", 3)
STORED = StoredMessage(
    topic="T", body=b"plain", queue_id=3, commit_log_offset=777, born_timestamp=5, store_timestamp=6,
    born_host="[fe80::1]:9", properties={"TAGS": "x"},
)  # fmt: skip
MEMBERS = [
    BatchMember(b"zero", {"TAGS": "even", "UNIQ_KEY": "0"}, 4),
    BatchMember(b"", {}, 0),
    BatchMember(b"two", {"TAGS": "even", "KEYS": "k"}, -1),
]


@pytest.mark.parametrize("kind", [None, *CompressionType])
@pytest.mark.parametrize("topic", ["T", "T" * 200])
def test_members_have_their_own_offsets_bodies_and_properties(kind: CompressionType | None, topic: str) -> None:
    """As in Java, the other fields are from the batch. Messages before and after the batch do not change."""
    stored = replace(STORED, topic=topic)
    records = [
        encode_message(replace(stored, queue_offset=9)),
        encode_message(batch_of(MEMBERS, 10, stored, kind)),
        encode_message(replace(stored, queue_offset=13)),
    ]
    block = decode_messages(b"head" + b"".join(records), QUEUE, 4)
    assert not block.corrupt
    assert block.unfinished == 5
    assert [message.queue_offset for message in block.messages] == [9, 10, 11, 12, 13]
    assert [message.body for message in block.messages] == [b"plain", b"zero", b"", b"two", b"plain"]
    inner = block.messages[1:4]
    assert [(message.flag, message.properties) for message in inner] == [(m.flag, m.properties) for m in MEMBERS]
    assert [message.has_tag(frozenset({b"even"})) for message in inner] == [True, False, True]
    stored_at = inner[1].offset_msg_id
    assert [message.msg_id for message in inner] == ["0", f"{stored_at}-11", f"{stored_at}-12"]
    assert [message.first_copy_id for message in inner] == [message.msg_id for message in inner]
    assert copied_properties(inner[2], topic)["ORIGIN_MESSAGE_ID"] == inner[2].msg_id
    for message in inner:
        assert (message.topic, message.commit_log_offset, message.stored_queue_id) == (topic, 777, 3)
        assert (message.born_timestamp, message.store_timestamp) == (5, 6)
        assert message.born_host == block.messages[0].born_host
        assert message.offset_msg_id == block.messages[0].offset_msg_id
    copies = [pickle.loads(pickle.dumps(message)) for message in block.messages]
    assert [copy.body for copy in copies] == [message.body for message in block.messages]
    assert [copy.queue_offset for copy in copies] == [9, 10, 11, 12, 13]


def opened(record: bytes, low: int) -> MessageBlock:
    block = frame_messages(record, QUEUE)
    opening = BlockDecompression(block, low=low)
    assert opening.open_quickly()
    opening.finish()
    return block


def test_members_below_the_requested_offset_are_skipped(subtests: pytest.Subtests) -> None:
    """A broker returns the whole batch that contains the offset."""
    for low, offsets in ((0, [10, 11, 12]), (11, [11, 12]), (12, [12]), (13, [])):
        with subtests.test(low=low):
            block = opened(encode_message(batch_of(MEMBERS, 10, STORED)), low)
            assert [message.queue_offset for message in block.messages] == offsets
            assert block.unfinished == len(offsets)


BODY = encode_batch(MEMBERS)


CORRUPT = [
    (BODY[:-1], "3", "message 3 of a batch"),
    (BODY[:30], "3", "cut short"),
    (BODY[:3] + b"\xff" + BODY[4:], "3", "message 1 of a batch claims 255 bytes"),
    (BODY, "2", "should have 2 messages, but has 3"),
    (BODY, "9" * 5000, "should have 99999999999999999999 messages, but has 3"),
    (b"no batch at all, but a text", "1", "message 1 of a batch"),
    (encode_batch([BatchMember(b"")]) * 40_000, "40000", "more than 32767"),
]


def test_a_batch_that_cannot_be_decoded_is_corrupt_as_a_whole(subtests: pytest.Subtests) -> None:
    for body, announced, reason in CORRUPT:
        with subtests.test(reason):
            batch = replace(batch_of(MEMBERS, 10, STORED), body=body, properties={"INNER_NUM": announced})
            block = decode_messages(encode_message(batch) + encode_message(replace(STORED, queue_offset=13)), QUEUE)
            assert [message.queue_offset for message in block.messages] == [13]
            [corrupt] = block.corrupt
            assert reason in corrupt.reason
            assert (corrupt.message.queue_offset, corrupt.message.body) == (10, body)


def test_a_batch_with_members_beyond_the_highest_offset_is_corrupt() -> None:
    """No checksum protects the offset in a record's head, so one wrong bit can make it the highest offset."""
    block = decode_messages(encode_message(batch_of(MEMBERS, 2**63 - 2, STORED)), QUEUE)
    assert not block.messages
    [corrupt] = block.corrupt
    assert "beyond the highest possible offset" in corrupt.reason


def test_an_empty_batch_has_no_messages() -> None:
    block = decode_messages(encode_message(batch_of([], 10, STORED)), QUEUE)
    assert not block.messages
    assert not block.corrupt


UNKNOWN = [
    (0x800, "0x800"),
    (-(2**31), "0x80000000"),
    (0x1001, "0x1000"),
    (NEED_UNWRAP, "NEED_UNWRAP"),
    (0x401, "type 4"),
]


def test_a_record_with_unknown_flags_is_corrupt_and_the_reason_names_them(subtests: pytest.Subtests) -> None:
    """The meaning of its body is unknown, so it must not become a message."""
    for sys_flag, reason in UNKNOWN:
        with subtests.test(sys_flag=sys_flag):
            block = decode_messages(encode_message(replace(STORED, sys_flag=sys_flag)), QUEUE)
            assert not block.messages
            [corrupt] = block.corrupt
            assert reason in corrupt.reason


def test_a_record_with_inner_batch_but_not_need_unwrap_is_one_message() -> None:
    """Java reads such a record in the same way."""
    [message] = decode_messages(encode_message(replace(STORED, sys_flag=INNER_BATCH)), QUEUE).messages
    assert message.body == b"plain"
