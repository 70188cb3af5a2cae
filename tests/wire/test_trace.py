"""Trace records, as Java reads them, and their distribution to messages."""

from __future__ import annotations

import pytest

from rmqd.wire.trace import (
    MAX_TRACE_BODY_BYTES,
    MAX_TRACE_KEYS_BYTES,
    ContextCode,
    TraceMessageType,
    TracePart,
    pub_record,
    sub_after_record,
    sub_before_record,
    trace_messages,
)
from tests.wire.trace_reader import read_trace

BEFORE = sub_before_record(
    timestamp_ms=1767225600123,
    region="DefaultRegion",
    group="mailer",
    request_id="R1",
    msg_id="0A01",
    retry_times=2,
    keys="k1 k2",
)
AFTER = sub_after_record(
    request_id="R1",
    msg_id="0A01",
    cost_ms=7,
    success=False,
    keys=None,
    code=ContextCode.EXCEPTION,
    timestamp_ms=1767225600130,
    group="mailer",
)


def test_java_reads_the_trace_of_a_consumed_message() -> None:
    [data] = trace_messages([TracePart(BEFORE + AFTER, "0A01", "k1 k2")])

    assert read_trace(data.body) == [
        {
            "type": "SubBefore", "time": 1767225600123, "region": "DefaultRegion", "group": "mailer", "request": "R1",
            "id": "0A01", "retries": 2, "keys": "k1 k2",
        },
        {
            "type": "SubAfter", "request": "R1", "id": "0A01", "cost": 7, "success": False, "keys": "null", "code": 2,
            "time": 1767225600130, "group": "mailer",
        },
    ]  # fmt: skip
    assert (data.keys, data.count) == ("0A01 k1 k2", 2)


def test_java_reads_the_trace_of_a_sent_message() -> None:
    record = pub_record(
        timestamp_ms=1767225600000,
        region="DefaultRegion",
        group="CLIENT_INNER_PRODUCER",
        topic="orders",
        msg_id="0A02",
        tags="paid",
        keys=None,
        store_host="10.0.0.1:10911",
        body_length=12,
        cost_ms=3,
        message_type=TraceMessageType.DELAY,
        offset_msg_id="0A0000010000",
        success=True,
    )
    [data] = trace_messages([TracePart(record, "0A02", None)])

    assert read_trace(data.body) == [
        {
            "type": "Pub", "time": 1767225600000, "region": "DefaultRegion", "group": "CLIENT_INNER_PRODUCER",
            "topic": "orders", "id": "0A02", "tags": "paid", "keys": "null", "host": "10.0.0.1:10911", "length": 12,
            "cost": 3, "kind": 3, "offset_id": "0A0000010000", "success": True,
        }
    ]  # fmt: skip


def test_a_key_of_several_messages_is_listed_once() -> None:
    parts = [TracePart(BEFORE, "0A01", "k1 k2"), TracePart(BEFORE, "0A02", "k2")]

    assert [data.keys for data in trace_messages(parts)] == ["0A01 k1 k2 0A02"]


@pytest.mark.parametrize(
    "parts",
    [
        [TracePart("x" * 997 + "ü\x02", f"{number:032}", None) for number in range(300)],
        [TracePart("x\x02", f"{number:032}", "ü" * 300 + str(number)) for number in range(300)],
    ],
    ids=["body", "keys"],
)
def test_records_too_long_for_one_message_are_divided(parts: list[TracePart]) -> None:
    messages = list(trace_messages(parts))

    assert b"".join(data.body for data in messages).decode() == "".join(part.records for part in parts)
    assert all(len(data.body) <= MAX_TRACE_BODY_BYTES for data in messages)
    assert all(len(data.keys.encode()) <= MAX_TRACE_KEYS_BYTES for data in messages)
    assert sum(data.count for data in messages) == 300
    assert 2 <= len(messages) <= 10
    named = [name for data in messages for name in data.keys.split()]
    assert {part.msg_id for part in parts} <= set(named)


def test_no_records_make_no_message() -> None:
    assert list(trace_messages([])) == []
