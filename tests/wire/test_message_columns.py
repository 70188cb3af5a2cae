"""Columns of messages say what views of the same messages say."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.errors import ProtocolError
from rmqd.wire.compression import compress
from rmqd.wire.message import decode_messages
from rmqd.wire.message_columns import FIXED, HostTexts, MessageColumns, Texts, parse_all
from rmqd.wire.message_encode import StoredMessage, encode_message
from rmqd.wire.properties import parse_properties
from rmqd.wire.sys_flag import CompressionType, compressed_flag
from tests.wire.test_message import PLAIN, QUEUE, STORED

ALL = (0, 2**63)


@given(st.lists(PLAIN.filter(lambda stored: stored.queue_offset < 2**63 - 1), max_size=4))
def test_every_field_of_every_layout(stored: list[StoredMessage]) -> None:
    """Several records in a row, with IPv4 and IPv6 in any mixture."""
    data = b"".join(map(encode_message, stored))
    found = MessageColumns()
    found.add(b"head" + data, 4, *ALL)
    views = decode_messages(data, QUEUE).messages
    assert found.bodies == [view.body for view in views]
    assert parse_all(found.properties) == [view.properties for view in views]
    texts, hosts = Texts(), HostTexts()
    assert [texts[topic] for topic in found.topics] == [view.record_topic for view in views]
    columns = {name: found.column(name) for name in set(FIXED) - {"magic", "body_crc", "queue_id", "body_size"}}
    for name in ("born_host", "store_host"):
        columns[name] = [hosts[host] for host in columns[name]]
    for name, values in columns.items():
        assert values == [getattr(view, name) for view in views], name


@given(PLAIN.filter(lambda stored: stored.queue_offset < 2**63 - 1), st.sampled_from(CompressionType))
def test_compressed_bodies(stored: StoredMessage, kind: CompressionType) -> None:
    """Of each kind."""
    packed = replace(stored, body=compress(stored.body, kind), sys_flag=stored.sys_flag | compressed_flag(kind))
    found = MessageColumns()
    found.add(encode_message(packed), 0, *ALL)
    assert found.bodies == [stored.body]


@given(st.lists(st.text("ab\x01\x02", max_size=12), max_size=5))
def test_properties_of_any_form(texts: list[str]) -> None:
    """Also such as no producer should write."""
    assert parse_all([text.encode() for text in texts]) == [parse_properties(text) for text in texts]


def test_offsets_and_tags_choose() -> None:
    """A tag is compared whole, wherever it stands among the properties."""
    records = [
        encode_message(replace(STORED, queue_offset=offset, properties=properties))
        for offset, properties in enumerate(
            [{"TAGS": "x"}, {"A": "b", "TAGS": "x"}, {"A": "b", "TAGS": "xy", "C": "d"}, {"TAGS": "x"}, {"A": "b"}]
        )
    ]
    found = MessageColumns()
    found.add(b"".join(records), 0, 1, 5, frozenset({b"x", b"z"}))
    assert found.column("queue_offset") == [1, 3]
    found.add(b"".join(records), 0, 2, 4)
    assert found.column("queue_offset") == [1, 3, 2, 3]


def test_a_corrupt_body_is_told_with_its_offset() -> None:
    """Unless nobody asked for that one."""
    record = bytearray(encode_message(STORED))
    record[record.index(b"0123456789")] ^= 0x10
    with pytest.raises(ProtocolError, match="the message at offset 7 is corrupt: the CRC"):
        MessageColumns().add(bytes(record), 0, *ALL)
    MessageColumns().add(bytes(record), 0, 8, 9)
    packed = encode_message(replace(STORED, sys_flag=1))
    with pytest.raises(ProtocolError, match="the message at offset 7 is corrupt: the body is not a ZLIB stream"):
        MessageColumns().add(packed, 0, *ALL)
    good = encode_message(STORED)
    found = MessageColumns(permissive=True)
    found.add(bytes(record) + good + packed, 0, *ALL)
    assert found.bodies == [None, STORED.body, None]
    assert found.errors[0] == "the CRC of its body does not match"
    assert found.errors[2].startswith("the body is not a ZLIB stream")
    assert found.column("queue_offset") == [7, 7, 7]


@pytest.mark.parametrize("host", ["127.0.0.1:1", "[0000:0000:0000:0000:0000:0000:0000:0001]:1"])
def test_cut_short_anywhere_is_a_protocol_error(host: str) -> None:
    """And nothing else."""
    for topic in ("T", "T" * 200):
        record = encode_message(replace(STORED, topic=topic, born_host=host, store_host=host))
        for size in range(1, len(record)):
            with pytest.raises(ProtocolError):
                MessageColumns().add(record + record[:size], 0, *ALL)


@pytest.mark.parametrize("at", [0, 4, 84])
@pytest.mark.parametrize("value", [0, 1, 90, 2**31 - 1, 2**31, 2**32 - 1])
def test_wrong_sizes_and_magic_are_protocol_errors(at: int, value: int) -> None:
    """Total size, magic and body size."""
    record = bytearray(encode_message(STORED))
    record[at : at + 4] = value.to_bytes(4)
    with pytest.raises(ProtocolError):
        MessageColumns().add(bytes(record), 0, *ALL)
