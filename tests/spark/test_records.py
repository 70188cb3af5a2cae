"""Message columns, compared with the views that handlers get of the same messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rmqd.errors import ProtocolError
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.decode import decode_messages
from rmqd.wire.messages.encode import BatchMember, StoredMessage, encode_message
from rmqd.wire.messages.properties import CompressionType
from tests.spark.needed import need
from tests.wire.batch_records import batch_of
from tests.wire.compressing import compress, compressed_flag
from tests.wire.messages.test_message import PLAIN, QUEUE, STORED

need("numpy", "pyarrow")

from rmqd.spark.source.arrow_columns import BatchBuilder  # noqa: E402
from rmqd.spark.source.source_columns import COLUMN_TYPES, DecodingOptions  # noqa: E402
from rmqd.spark.source.source_records import (  # noqa: E402
    FramedResponse,
    QueueOrigin,
    RecordBuffer,
)

LAST = 2**63 - 1
ALL = (0, LAST, QueueOrigin(QUEUE), LAST)
HOSTS = ["127.0.0.1:1", "[0000:0000:0000:0000:0000:0000:0000:0001]:1"]
BEYOND_ARROW = 2**63 // 1000  # milliseconds whose microseconds do not fit
STORABLE = PLAIN.filter(
    lambda stored: max(stored.born_timestamp, stored.store_timestamp) < BEYOND_ARROW and stored.queue_offset < LAST
)
AS_STORED = (
    "queue_offset", "msg_id", "offset_msg_id", "keys", "tags", "body", "flag", "sys_flag", "born_host", "store_host",
    "reconsume_times", "commit_log_offset", "store_size",
)  # fmt: skip


TIMES = ("born_timestamp", "store_timestamp")
TIMELESS = tuple(name for name in COLUMN_TYPES if name not in TIMES)  # Python's dates end sooner than Arrow's


def table(data: bytes, *columns: str) -> dict[str, list[Any]]:
    builder, reply = BatchBuilder(DecodingOptions(columns)), FramedResponse(data, 0)
    if reply.damage is not None:
        raise ProtocolError(reply.damage)
    builder.records.add(reply, *ALL)
    found: dict[str, list[Any]] = builder.finish().to_pydict()
    return found


def offsets(data: bytes, low: int = 0, high: int = LAST, *tags: str) -> list[int]:
    """The offsets of the records within the range, with one of the tags."""
    records = RecordBuffer()
    records.add(FramedResponse(data, 0), low, high, QueueOrigin(QUEUE, frozenset(tags)), LAST)
    found: list[int] = records.finish().fixed_size_field("queue_offset").tolist()
    return found


@settings(deadline=None, max_examples=15)  # Arrow's first call takes longer; the nightly test has more examples
@given(st.lists(STORABLE, max_size=4))
@example([replace(STORED, sys_flag=0, born_host=born, store_host=store) for born in HOSTS for store in HOSTS])
@example([replace(STORED, topic="T" * size) for size in (1, 127, 128, 200, 255)])
def test_every_field_of_every_layout(stored: list[StoredMessage]) -> None:
    check_every_field(stored)


def in_order(stored: list[StoredMessage]) -> list[StoredMessage]:
    """Give consecutive offsets to the messages, as in a queue, from the first message's offset on."""
    first = min(stored[0].queue_offset, LAST - len(stored)) if stored else 0
    return [replace(one, queue_offset=first + index) for index, one in enumerate(stored)]


def check_every_field(stored: list[StoredMessage]) -> None:
    """Check several records in two responses, with any mix of IPv4 and IPv6 hosts."""
    data = list(map(encode_message, in_order(stored)))
    builder = BatchBuilder(DecodingOptions(tuple(COLUMN_TYPES)))
    for part in (data[:2], data[2:]):
        builder.records.add(FramedResponse(b"head" + b"".join(part), 4), *ALL)
    assert len(builder.records) == len(stored)
    batch = builder.finish()
    batch.validate(full=True)
    found, views = batch.select(TIMELESS).to_pydict(), decode_messages(b"".join(data), QUEUE).messages
    for name in AS_STORED:
        values = [getattr(view, name) for view in views]
        assert found[name] == [value or None if name in ("keys", "tags") else value for value in values], name
    assert found["source_topic"] == [view.record_topic for view in views]
    assert [dict(entries) for entries in found["properties"]] == [view.properties for view in views]
    for name in TIMES:
        microseconds = batch.column(name).cast("int64").to_pylist()
        assert microseconds == [1000 * getattr(view, name) for view in views], name


@settings(deadline=None, max_examples=15)
@given(STORABLE, st.sampled_from(CompressionType))
def test_compressed_bodies(stored: StoredMessage, kind: CompressionType) -> None:
    check_compressed_body(stored, kind)


def check_compressed_body(stored: StoredMessage, kind: CompressionType) -> None:
    """Compare a compressed body with the same body uncompressed."""
    packed = replace(stored, body=compress(stored.body, kind), sys_flag=stored.sys_flag | compressed_flag(kind))
    data = b"".join(map(encode_message, in_order([packed, stored])))
    assert table(data, "body") == {"body": [stored.body] * 2}


BATCH = [BatchMember(b"0", {"TAGS": "x"}, 4), BatchMember(b"1", {"TAGS": "y", "A": "b"}), BatchMember(b"", {})]


def test_members_of_a_batch_are_rows() -> None:
    """The rows equal the messages that handlers get. A range may start and end within a batch."""
    for kind in [None, *CompressionType]:
        single = encode_message(replace(STORED, queue_offset=3))
        reply = encode_message(batch_of(BATCH, 0, STORED, kind)) + single
        builder = BatchBuilder(DecodingOptions(tuple(COLUMN_TYPES)))
        builder.records.add(FramedResponse(reply, 0), *ALL)
        batch = builder.finish()
        batch.validate(full=True)
        views = decode_messages(reply, QUEUE).messages
        found = batch.select(TIMELESS).to_pydict()
        assert found["body"] == [view.body for view in views] == [b"0", b"1", b"", STORED.body]
        assert found["queue_offset"] == [0, 1, 2, 3]
        assert found["msg_id"] == [view.msg_id for view in views]
        assert [dict(entries) for entries in found["properties"]] == [view.properties for view in views]
        assert offsets(reply, 1, 2) == [1]
        assert offsets(reply, 0, LAST, "x") == [0, 3]


def test_a_batch_that_cannot_be_unpacked_is_reported() -> None:
    """It may start before the range, because a member within the range may have a wanted tag."""
    for tags in [frozenset[str](), frozenset({"x"})]:
        for low in [0, 1]:
            bad = replace(batch_of(BATCH, 0, STORED), body=b"no batch")
            records = RecordBuffer()
            records.add(FramedResponse(encode_message(bad), 0), low, 10, QueueOrigin(QUEUE, tags), 10)
            with pytest.raises(ProtocolError, match="message 1 of a batch"):
                records.finish()
            assert "of a batch" in records.finish(permissive=True).errors[0]


def test_records_are_filtered_by_offset_and_tag() -> None:
    """Whole tags are compared, at any position among the properties."""
    data = b"".join(
        encode_message(replace(STORED, queue_offset=offset, properties=properties))
        for offset, properties in enumerate(
            [{"TAGS": "x"}, {"A": "b", "TAGS": "x"}, {"A": "b", "TAGS": "xy", "C": "d"}, {"TAGS": "x"}, {"A": "b"}]
        )
    )
    assert offsets(data, 1, 5, "x", "z") == [1, 3]
    assert offsets(data, 2, 4) == [2, 3]
    assert offsets(data, 0, LAST, "none") == []


@pytest.mark.parametrize(
    ("stored", "wrong", "true"),
    [
        ((5, 70, 7), 70, 6),
        ((5, 2, 7), 2, 6),
        ((5, 6, 9), 9, 7),
        ((1, 6, 7), 1, 5),
        ((7, 6, 7), 7, 5),
        ((4,), 4, 5),
        ((5, 5, 7), 5, 6),
    ],
)
def test_a_message_with_a_wrong_offset_is_corrupt_at_its_place(stored: tuple[int, ...], wrong: int, true: int) -> None:
    """The response to a pull at 5 continues at 8. The message would silently be left out. The text has the remedy."""
    for high in (8, true):
        records = RecordBuffer()
        for low, has in [(0, (0, 2, 4)), (5, stored)]:
            data = b"".join(encode_message(replace(STORED, queue_offset=offset)) for offset in has)
            end = low + 3 + 2 * (not low)
            records.add(FramedResponse(data, 0), low, high if low else end, QueueOrigin(QUEUE), end)
        reason = f"its stored offset {wrong} contradicts its place in the queue"
        found = records.finish(permissive=True)
        places = [0, 2, 4, *range(5, 5 + len(stored))]
        assert found.fixed_size_field("queue_offset").tolist() == [place for place in places if place < high]
        assert found.errors == ({places.index(true): reason} if high > true else {})
        assert found.bodies.to_pylist().count(None) == len(found.errors)
        if high > true:
            told = (
                f"{QUEUE}: the message at offset {true} is corrupt: {reason}; to continue without its body, set mode="
            )
            with pytest.raises(ProtocolError, match=told):
                records.finish()


@pytest.mark.parametrize("end", [6, 7])
def test_a_wrong_next_begin_offset_is_an_error(end: int) -> None:
    """No message is at fault."""
    data = b"".join(encode_message(replace(STORED, queue_offset=offset)) for offset in (5, 6, 7))
    records = RecordBuffer()
    records.add(FramedResponse(data, 0), 5, 8, QueueOrigin(QUEUE), end)
    with pytest.raises(ProtocolError, match=f"{QUEUE}: the offsets of messages from 5 to {end - 1} contradict"):
        records.finish(permissive=True)


def test_a_wrong_offset_of_a_batch_is_an_error() -> None:
    """The messages of the batch would seem to be before the range."""
    data = encode_message(batch_of(BATCH, 1, STORED)) + encode_message(replace(STORED, queue_offset=8))
    records = RecordBuffer()
    records.add(FramedResponse(data, 0), 5, 9, QueueOrigin(QUEUE), 9)
    with pytest.raises(ProtocolError, match="the offsets of messages from 5 to 8 contradict each other"):
        records.finish(permissive=True)


def test_an_arrow_batch_may_have_messages_of_several_queues() -> None:
    """Each queue has its own offsets and tags. Retries name their original topic too."""
    retry = {"RETRY_TOPIC": "orders", "TAGS": "y"}
    builder = BatchBuilder(DecodingOptions(("topic", "source_topic", "broker", "queue_id", "queue_offset", "tags")))
    for queue, tags, properties in (
        (MessageQueue("orders", "a", 7), frozenset({"x"}), {"TAGS": "x"}),
        (MessageQueue("%RETRY%group", "b", 0), frozenset[str](), retry),
        (MessageQueue("orders", "a", 1), frozenset({"x"}), {"TAGS": "z"}),
    ):
        data = [
            encode_message(replace(STORED, topic=queue.topic, queue_offset=offset, properties=properties))
            for offset in range(2)
        ]
        builder.records.add(FramedResponse(b"".join(data), 0), 1, 9, QueueOrigin(queue, tags), 9)
    assert list(map(list, zip(*builder.finish().to_pydict().values(), strict=True))) == [
        ["orders", "orders", "a", 7, 1, "x"],
        ["orders", "%RETRY%group", "b", 0, 1, "y"],
    ]


def test_a_corrupt_body_is_reported_with_its_offset() -> None:
    """Messages outside the range are not checked."""
    damaged, good, packed = map(encode_message, in_order([STORED, STORED, replace(STORED, sys_flag=1)]))
    damaged = damaged.replace(b"0123456789", b"\x20123456789")
    for data, at, reason in ((damaged, 7, "the CRC"), (packed, 9, "the body is not a ZLIB stream")):
        records = RecordBuffer()
        records.add(FramedResponse(data, 0), *ALL)
        with pytest.raises(ProtocolError, match=f"{QUEUE}: the message at offset {at} is corrupt: {reason}"):
            records.finish()
    assert offsets(damaged, 0, 7) == []
    records = RecordBuffer()
    records.add(FramedResponse(damaged + good + packed, 0), *ALL)
    found = records.finish(permissive=True)
    assert found.bodies.to_pylist() == [None, STORED.body, None]
    assert found.errors[0] == "the CRC of its body does not match"
    assert found.errors[2].startswith("the body is not a ZLIB stream")
    records = RecordBuffer()
    records.add(FramedResponse(damaged, 0), *ALL)
    (unchecked,) = records.finish(check_crc=False).bodies.to_pylist()
    assert (len(unchecked), unchecked == STORED.body) == (len(STORED.body), False)


def test_a_record_cut_short_anywhere_is_a_protocol_error() -> None:
    for host in HOSTS:
        for topic in ("T", "T" * 200):
            record = encode_message(replace(STORED, topic=topic, born_host=host, store_host=host))
            for size in range(1, len(record)):
                with pytest.raises(ProtocolError):
                    table(record + record[:size], "body")


def test_a_record_that_announces_a_wrong_size_is_a_protocol_error() -> None:
    """All wrong sizes are tried, with other records before and after the wrong one."""
    for shorter in [True, False]:
        for host in HOSTS:
            good = encode_message(replace(STORED, sys_flag=0, born_host=host, store_host=host))
            others = range(len(good)) if shorter else range(len(good) + 1, 2 * len(good) + 1)
            for size in others:
                with pytest.raises(ProtocolError):
                    table(good + size.to_bytes(4) + good[4:] + good, "body")


def test_damage_among_records_of_equal_layout_is_found_as_in_a_single_record() -> None:
    """Such records are checked at once, which must find damage at every position."""
    for topic in ["T", "T" * 200]:
        records = [encode_message(replace(STORED, sys_flag=0, topic=topic, queue_offset=number)) for number in range(9)]
        for at in range(len(records[4])):
            damaged = bytearray(records[4])
            damaged[at] ^= 0x11
            alone = FramedResponse(bytes(damaged), 0)
            among = FramedResponse(b"".join([*records[:4], damaged, *records[5:]]), 0)
            assert (alone.damage is None) == (among.damage is None), at
            assert among.count == (9 if among.damage is None else 4), at


def test_bodies_and_properties_of_messages_of_equal_layout() -> None:
    """One message differs, possibly with the same total size. The others may have no body."""
    for value in ["12345", "123"]:
        for other in [b"body", b"b0dy", b"longer", b""]:
            for body in (b"body", b""):
                bodies = [body] * 6 + [other] + [body] * 6
                stored = [
                    replace(
                        STORED, sys_flag=0, body=each, queue_offset=at, properties={"A": value if at == 6 else "12345"}
                    )
                    for at, each in enumerate(bodies)
                ]
                data = b"".join(map(encode_message, stored))
                found = table(data, "body", "queue_offset", "properties")
                assert (found["body"], found["queue_offset"]) == (bodies, list(range(13)))
                views = decode_messages(data, QUEUE).messages
                assert [dict(entries) for entries in found["properties"]] == [view.properties for view in views]


def test_a_wrong_crc_is_found_among_bodies_of_equal_length() -> None:
    stored = [replace(STORED, sys_flag=0, body=b"body", queue_offset=number) for number in range(9)]
    records = list(map(encode_message, stored))
    records[4] = records[4].replace(b"body", b"b0dy")
    with pytest.raises(ProtocolError, match="at offset 4 is corrupt: the CRC"):
        table(b"".join(records), "body")


def test_wrong_sizes_and_magic_are_protocol_errors() -> None:
    """Total size, magic and body size."""
    for value in [0, 1, 90, 2**31 - 1, 2**31, 2**32 - 1]:
        for at in [0, 4, 84]:
            record = bytearray(encode_message(STORED))
            record[at : at + 4] = value.to_bytes(4)
            with pytest.raises(ProtocolError):
                table(bytes(record), "body")
