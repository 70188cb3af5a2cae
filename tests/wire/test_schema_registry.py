"""The prefix that clients of RocketMQ's schema registry write in front of an Avro record."""

from __future__ import annotations

import pytest

from rmqd.errors import ProtocolError
from rmqd.handler_api.typed.avro_records import split_schema_id

# the output of GenericAvroSerde of schema-registry-client 0.1.0 for {"id": 7, "note": "ada"}, with the record's id
WRITTEN = bytes.fromhex("1000431bde82d7b6390e06616461")
RECORD_ID = 0x431BDE82D7B639
FORMER = b"\x20" + RECORD_ID.to_bytes(8) + bytes(8)


def test_the_output_of_the_java_client_is_split() -> None:
    assert split_schema_id(WRITTEN) == (RECORD_ID, b"\x0e\x06ada")


def test_the_output_of_clients_before_the_first_release_is_split() -> None:
    assert split_schema_id(FORMER + b"\x0e\x06ada") == (RECORD_ID, b"\x0e\x06ada")


REASON = "does not begin with the prefix of RocketMQ's schema registry clients"
NOT_WRITTEN = [b"", WRITTEN[:8], WRITTEN[1:], FORMER[:-1], FORMER[:-1] + b"\x01", b"\x12" * 20]


def test_a_body_without_a_valid_prefix_is_refused(subtests: pytest.Subtests) -> None:
    for body in NOT_WRITTEN:
        with subtests.test(body=body), pytest.raises(ProtocolError, match=REASON):
            split_schema_id(body)
