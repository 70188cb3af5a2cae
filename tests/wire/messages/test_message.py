"""Decoding of stored messages: every layout, and invalid records."""

from __future__ import annotations

import itertools
import pickle
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.errors import ProtocolError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.message import Message, MessageBlock
from rmqd.wire.messages.properties import COMPRESSED, CompressionType
from tests.wire.compressing import compress, compressed_flag
from tests.wire.golden_frames import command

pytestmark = pytest.mark.usefixtures("each_core")
QUEUE = MessageQueue("T1", "probe-a", 0)
LONG = st.integers(0, 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)
PORT = st.integers(0, 65535)
V4 = st.builds("{}:{}".format, st.ip_addresses(v=4), PORT)
V6 = st.builds("[{}]:{}".format, st.ip_addresses(v=6).map(lambda ip: ip.packed.hex(":", 2)), PORT)
VALUE = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
PROPERTIES = st.dictionaries(VALUE, VALUE, max_size=4)
PLAIN = st.builds(
    StoredMessage,
    topic=st.text("abc%_-", min_size=1, max_size=200) | st.just("%RETRY%g"),
    body=st.binary(max_size=100),
    queue_id=INT,
    queue_offset=LONG,
    commit_log_offset=LONG,
    flag=INT,
    sys_flag=st.sampled_from([0, 2, 8]),
    born_timestamp=LONG,
    born_host=V4 | V6,
    store_timestamp=LONG,
    store_host=V4 | V6,
    reconsume_times=INT,
    prepared_transaction_offset=LONG,
    properties=PROPERTIES,
)


def pulled(name: str) -> MessageBlock:
    reply = command(name)
    return decode_messages(reply.payload, QUEUE, reply.body_start)


def assert_same(message: Message, stored: StoredMessage) -> None:
    assert message.record_topic == stored.topic
    assert message.body == stored.body
    assert message.queue_offset == stored.queue_offset
    assert message.commit_log_offset == stored.commit_log_offset
    assert message.flag == stored.flag
    assert message.born_timestamp == stored.born_timestamp
    assert message.born_host == stored.born_host
    assert message.store_timestamp == stored.store_timestamp
    assert message.store_host == stored.store_host
    assert message.reconsume_times == stored.reconsume_times
    assert message.prepared_transaction_offset == stored.prepared_transaction_offset
    assert message.properties == stored.properties


@given(st.lists(PLAIN, max_size=4))
def test_round_trip(stored: list[StoredMessage]) -> None:
    """Every field of every layout, several records in a row, with any mixture of IPv4 and IPv6."""
    block = decode_messages(b"".join(map(encode_message, stored)), QUEUE)
    assert len(block.messages) == len(stored)
    for message, expected in zip(block.messages, stored, strict=True):
        assert_same(message, expected)


@given(PLAIN, st.sampled_from(CompressionType))
def test_compressed_round_trip(stored: StoredMessage, kind: CompressionType) -> None:
    packed = replace(stored, body=compress(stored.body, kind), sys_flag=stored.sys_flag | compressed_flag(kind))
    (message,) = decode_messages(encode_message(packed), QUEUE).messages
    assert_same(message, stored)


def test_pulled_messages() -> None:
    """Plain messages, ZLIB with and without type bits, and three messages that were sent as one batch."""
    messages = pulled("pull_response_9_msgs").messages
    assert [message.queue_offset for message in messages] == list(range(9))
    first = messages[0]
    assert first.topic == "T1"
    assert first.body == b'hello-{"TAGS": "TagA", "KEYS": "k1 k2"}'
    assert (first.tags, first.keys) == ("TagA", "k1 k2")
    assert first.msg_id == "FD0000000000000000000000000000021FF230946E0968BABA240000"
    assert first.offset_msg_id == "7F000001000051AF0000000000000000"
    assert (first.born_host, first.store_host) == ("127.0.0.1:43088", "127.0.0.1:20911")
    assert [message.sys_flag for message in messages[4:6]] == [0x1, 0x301]
    assert len(set(messages[4].body)) < len(messages[4].body) > 100
    assert [message.body for message in messages[6:]] == [b"batch0", b"batch1", b"batch2"]


@pytest.mark.parametrize(
    ("name", "bodies"),
    [
        ("pull_response_zstd_and_zlib", [b"x" * 6000 + b"zstd", b"x" * 6000 + b"zlib"]),
        ("pull_response_lz4_and_delayed", [b"x" * 6000 + b"lz4", None]),
    ],
)
def test_pulled_compressed_messages(name: str, bodies: list[bytes | None]) -> None:
    """The Java producer compressed them."""
    for message, body in zip(pulled(name).messages, bodies, strict=True):
        assert body is None or message.body == body


def test_a_delayed_message_has_its_real_topic_after_delivery() -> None:
    message = pulled("pull_response_lz4_and_delayed").messages[1]
    assert message.properties["REAL_TOPIC"] == message.topic == "TC"
    assert message.properties["DELAY"] == "1"


def test_a_retried_message_has_the_topic_to_which_it_was_sent() -> None:
    (message,) = pulled("pull_response_retry_topic").messages
    assert (message.topic, message.record_topic) == ("T1", "%RETRY%g1")
    assert message.reconsume_times == 1


def test_long_topic_is_read() -> None:
    (message,) = pulled("pull_response_v2_magic_long_topic").messages
    assert len(message.record_topic) == 168


def test_the_encoder_writes_the_same_bytes_as_a_broker() -> None:
    names = [f"pull_response_{name}" for name in ("9_msgs", "zstd_and_zlib", "retry_topic", "v2_magic_long_topic")]
    for message in (message for name in names for message in pulled(name).messages):
        record = message.block.data[message._start : message._start + message.store_size]
        stored = StoredMessage(
            topic=message.record_topic,
            body=message.stored_body,
            queue_offset=message.queue_offset,
            commit_log_offset=message.commit_log_offset,
            flag=message.flag,
            sys_flag=message.sys_flag,
            born_timestamp=message.born_timestamp,
            born_host=message.born_host,
            store_timestamp=message.store_timestamp,
            store_host=message.store_host,
            reconsume_times=message.reconsume_times,
            prepared_transaction_offset=message.prepared_transaction_offset,
            properties=message.properties,
        )
        assert encode_message(stored) == record


STORED = StoredMessage(topic="T", body=b"0123456789", properties={"A": "b", "TAGS": "x"}, queue_offset=7)


def test_a_record_with_a_flipped_body_bit_is_corrupt() -> None:
    """The next record is not affected, and the offset and properties of the corrupt message can be read."""
    record = bytearray(encode_message(STORED))
    record[record.index(b"0123456789")] ^= 0x10
    good = encode_message(replace(STORED, queue_offset=8))
    block = decode_messages(bytes(record) + good, QUEUE)
    assert [message.queue_offset for message in block.messages] == [8]
    (corrupt,) = block.corrupt
    assert "CRC" in corrupt.reason
    assert (corrupt.message.queue_offset, corrupt.message.properties) == (7, STORED.properties)


def test_a_record_whose_body_cannot_be_decompressed_is_corrupt(subtests: pytest.Subtests) -> None:
    for kind in (0, 1, 2, 3, 5):
        with subtests.test(kind=kind):
            record = encode_message(replace(STORED, sys_flag=COMPRESSED | kind << 8))
            block = decode_messages(record + encode_message(STORED), QUEUE)
            assert len(block.messages) == len(block.corrupt) == 1
            assert block.corrupt[0].message.body == STORED.body  # as stored, so that an operator can inspect it


def test_the_top_bit_of_the_crc_is_ignored() -> None:
    record = bytearray(encode_message(STORED))
    record[8] |= 0x80
    assert len(decode_messages(bytes(record), QUEUE).messages) == 1


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[0000:0000:0000:0000:0000:0000:0000:0001]:1"])
def test_cut_short_anywhere_is_a_protocol_error(host: str) -> None:
    for topic in ("T", "T" * 200):
        record = encode_message(replace(STORED, topic=topic, born_host=host, store_host=host))
        assert len(decode_messages(record, QUEUE).messages) == 1
        for size in range(1, len(record)):
            with pytest.raises(ProtocolError):
                decode_messages(record[:size], QUEUE)
            with pytest.raises(ProtocolError):
                decode_messages(record + record[:size], QUEUE)


def test_wrong_sizes_and_magic_are_protocol_errors(subtests: pytest.Subtests) -> None:
    """With any total size, magic or body size, no byte outside the record is read."""
    for at, value in itertools.product((0, 4, 84), (0, 1, 90, 2**31 - 1, 2**31, 2**32 - 1)):
        with subtests.test(at=at, value=value):
            record = bytearray(encode_message(STORED))
            record[at : at + 4] = value.to_bytes(4)
            with pytest.raises(ProtocolError):
                decode_messages(bytes(record), QUEUE)


def test_other_magic_is_a_protocol_error(subtests: pytest.Subtests) -> None:
    """Also if the rest of the record is valid: a broker must never send the blank at the end of a file."""
    for magic in (0xCBD43194, 0xDAA320A8, 0, 2**32 - 1):
        with subtests.test(magic=magic):
            for topic in ("T", "T" * 200):
                record = bytearray(encode_message(replace(STORED, topic=topic)))
                record[4:8] = magic.to_bytes(4)
                with pytest.raises(ProtocolError):
                    decode_messages(bytes(record), QUEUE)


def test_empty_data_has_no_messages() -> None:
    assert decode_messages(b"", QUEUE).messages == []
    assert decode_messages(b"header", QUEUE, 6).messages == []


def test_properties_that_are_not_utf8_have_replacement_characters() -> None:
    record = encode_message(replace(STORED, properties={"A": "b"})).replace(b"A\x01b", b"A\x01\xff")
    (message,) = decode_messages(record, QUEUE).messages
    assert message.properties == {"A": "\N{REPLACEMENT CHARACTER}"}


@given(PROPERTIES, VALUE, st.frozensets(VALUE, max_size=3))
def test_tag_check_agrees_with_the_properties(properties: dict[str, str], tag: str, tags: frozenset[str]) -> None:
    """The check reads stored bytes, and must have the same result as a check of the parsed properties."""
    for stored in (properties, properties | {"TAGS": tag}, {"TAGS": tag} | properties, {"MYTAGS": tag} | properties):
        (message,) = decode_messages(encode_message(replace(STORED, properties=stored)), QUEUE).messages
        wanted = tags | {tag}
        assert message.has_tag(frozenset(text.encode() for text in wanted)) == (message.tags in wanted)


def test_a_message_can_be_pickled() -> None:
    for message in pulled("pull_response_zstd_and_zlib").messages:
        copy = pickle.loads(pickle.dumps(message))
        assert (copy.body, copy.properties, copy.message_queue) == (message.body, message.properties, QUEUE)
        assert copy.queue_offset == message.queue_offset


def test_values_that_are_not_in_the_record_are_pickled_too() -> None:
    """The attempts in place, the original topic of a pop retry topic, and the queue's lowest and highest offset."""
    block = decode_messages(encode_message(StoredMessage(topic="%RETRY%g_orders", queue_id=0, body=b"x")), QUEUE)
    block.origin, block.min_offset, block.max_offset = "orders", 3, 9
    [message] = block.messages
    message.count_attempt()
    copy = pickle.loads(pickle.dumps(message))
    assert (copy.topic, copy.reconsume_times) == (message.topic, message.reconsume_times) == ("orders", 1)
    assert (copy.min_offset, copy.max_offset) == (3, 9)


def test_block_counts_the_memory_it_holds() -> None:
    block = pulled("pull_response_zstd_and_zlib")
    assert block.size_bytes == len(block.data) + sum(len(message.body) for message in block.messages)


def test_queues_sort_as_java_sorts_them() -> None:
    queues = [
        MessageQueue("T", "b", 1),
        MessageQueue("T", "a", 2),
        MessageQueue("S", "z", 9),
        MessageQueue("T", "a", 0),
    ]
    assert [str(queue) for queue in sorted(queues)] == ["S@z:9", "T@a:0", "T@a:2", "T@b:1"]


def test_only_a_committed_message_has_a_transaction_id() -> None:
    """Brokers keep TRAN_MSG in committed messages. As in Java, its value is not case-sensitive."""
    ids = []
    for marks in ({"TRAN_MSG": "true"}, {"TRAN_MSG": "TRUE"}, {"TRAN_MSG": "false"}, {}):
        stored = StoredMessage(topic="T", queue_id=0, body=b"x", properties={"UNIQ_KEY": "ID", **marks})
        ids += [message.transaction_id for message in decode_messages(encode_message(stored), QUEUE).messages]
    assert ids == ["ID", "ID", None, None]
