"""Encoding of messages and batches."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.errors import InvalidMessageError, ProtocolError
from rmqd.wire.messages.decode import decode_record
from rmqd.wire.messages.encode import BatchMember, StoredMessage, decode_batch, encode_batch, encode_message
from tests.wire.golden_frames import command

VALUE = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=20)
MEMBERS = st.lists(
    st.builds(
        BatchMember,
        st.binary(max_size=50),
        st.dictionaries(VALUE, VALUE, max_size=3),
        st.integers(-(2**31), 2**31 - 1),
    ),
    max_size=5,
)


@given(MEMBERS)
def test_batch_round_trip(members: list[BatchMember]) -> None:
    assert decode_batch(encode_batch(members)) == members


@pytest.mark.parametrize("name", ["java_send_batch_request", "send_batch_request"])
def test_batch_is_written_as_recorded(name: str) -> None:
    body = command(name).body
    assert encode_batch(decode_batch(body)) == body
    assert len(decode_batch(body)) == 3


def test_batch_cut_short_anywhere() -> None:
    body = encode_batch([BatchMember(b"one", {"a": "b"})])
    for size in range(1, len(body)):
        with pytest.raises(ProtocolError):
            decode_batch(body[:size])


def test_batch_with_wrong_sizes(subtests: pytest.Subtests) -> None:
    for at, value in itertools.product((0, 16), (0, 1, 21, 2**31 - 1, 2**32 - 1)):
        with subtests.test(at=at, value=value):
            body = bytearray(encode_batch([BatchMember(b"one", {"a": "b"})]))
            body[at : at + 4] = value.to_bytes(4)
            with pytest.raises(ProtocolError):
                decode_batch(bytes(body))


STORED = StoredMessage(topic="T", body=b"")
HOST = st.sampled_from(["192.0.2.7:65535", "[2001:0db8:0000:0000:0000:0000:0000:0001]:0"])
LONG = st.integers(-(2**63), 2**63 - 1)
INT = st.integers(-(2**31), 2**31 - 1)


@given(
    st.builds(
        StoredMessage,
        topic=st.sampled_from(["T", "%RETRY%" + "g" * 200, "ü"]),
        body=st.binary(max_size=50),
        queue_id=INT,
        queue_offset=LONG,
        commit_log_offset=LONG,
        flag=INT,
        sys_flag=st.sampled_from([0, 1, 0x301, 8]),
        born_timestamp=LONG,
        born_host=HOST,
        store_timestamp=LONG,
        store_host=HOST,
        reconsume_times=INT,
        prepared_transaction_offset=LONG,
        properties=st.dictionaries(VALUE, VALUE, max_size=3),
    )
)
def test_record_round_trip(message: StoredMessage) -> None:
    assert decode_record(encode_message(message)) == message


def test_record_cut_short() -> None:
    record = encode_message(STORED)
    for size in (0, 40, 60, len(record) - 1):
        with pytest.raises(ProtocolError):
            decode_record(record[:size])


TOO_LARGE = [
    replace(STORED, topic="T" * 70_000),
    replace(STORED, properties={"a": "x" * 40_000}),
    replace(STORED, properties={"a\x01": "x"}),
    replace(STORED, properties={"a": "\ud800"}),
    replace(STORED, born_host="somewhere:1"),
    replace(STORED, store_host="127.0.0.1"),
    replace(STORED, queue_id=2**40),
    replace(STORED, queue_offset=2**63),
]


def test_values_that_the_layout_cannot_hold_are_refused(subtests: pytest.Subtests) -> None:
    for message in TOO_LARGE:
        with subtests.test(message=message), pytest.raises(InvalidMessageError):
            encode_message(message)


@pytest.mark.parametrize(("length", "version"), [(127, 0xA7), (128, 0xAB)])
def test_layout_follows_the_topics_length(length: int, version: int) -> None:
    """Java reads a length of one byte as signed, so 128 needs the layout with two bytes."""
    assert encode_message(replace(STORED, topic="T" * length))[7] == version


def test_values_that_a_batch_cannot_hold_are_refused() -> None:
    for member in (BatchMember(b"", {"a": "\x02"}), BatchMember(b"", {}, 2**31)):
        with pytest.raises(InvalidMessageError):
            encode_batch([member])
