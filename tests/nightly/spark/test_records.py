"""Columns of messages have the values of views of the same messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmqd.errors import ProtocolError
from rmqd.wire.messages.encode import StoredMessage, encode_message
from rmqd.wire.messages.properties import CompressionType
from tests.spark.needed import need
from tests.wire.messages.test_message import STORED

need("pyarrow")

from rmqd.spark.source.arrow_columns import BatchBuilder  # noqa: E402
from rmqd.spark.source.source_columns import DecodingOptions  # noqa: E402
from rmqd.spark.source.source_records import FramedResponse, RecordBuffer  # noqa: E402
from tests.spark.test_records import (  # noqa: E402
    ALL,
    STORABLE,
    TIMELESS,
    check_compressed_body,
    check_every_field,
    table,
)


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(STORABLE, max_size=4))
def test_every_field_of_every_layout(stored: list[StoredMessage]) -> None:
    check_every_field(stored)


@settings(deadline=None)
@given(STORABLE, st.sampled_from(CompressionType))
def test_compressed_bodies(stored: StoredMessage, kind: CompressionType) -> None:
    check_compressed_body(stored, kind)


@pytest.mark.parametrize(("sign", "time"), [(1, 2**63 - 1), (-1, -(2**63))])
def test_a_time_outside_the_range_of_timestamps_is_the_last_possible_one(sign: int, time: int) -> None:
    """A time that is too early is the first one. A producer's clock may be wrong, which must not prevent the read."""
    stored = replace(STORED, born_timestamp=time)
    builder = BatchBuilder(DecodingOptions(("born_timestamp",)))
    builder.records.add(FramedResponse(encode_message(stored), 0), *ALL)
    assert builder.finish().column(0).cast("int64").to_pylist() == [sign * ((2**63 - 1) // 1000 * 1000)]


def test_unknown_flags_are_reported() -> None:
    records = RecordBuffer()
    records.add(FramedResponse(encode_message(replace(STORED, sys_flag=0x800)), 0), *ALL)
    with pytest.raises(ProtocolError, match="0x800"):
        records.finish()


@pytest.mark.slow
@settings(deadline=None)
@given(st.lists(STORABLE, min_size=1, max_size=2), st.data())
def test_any_damage_is_a_protocol_error_or_a_row(stored: list[StoredMessage], data: st.DataObject) -> None:
    """No other error is raised for any damaged byte, and no additional row is returned."""
    whole = bytearray(b"".join(map(encode_message, stored)))
    at = data.draw(st.integers(0, len(whole) - 1))
    whole[at] ^= data.draw(st.integers(1, 255))
    try:
        found = table(bytes(whole), *TIMELESS)
    except ProtocolError:
        return
    assert len(found["body"]) <= len(stored)
