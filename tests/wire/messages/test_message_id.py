"""Message ids."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmqd.errors import InvalidMessageError, ProtocolError
from rmqd.wire.messages.message_id import UniqueKeys, offset_message_id, parse_host, parse_offset_message_id


@given(st.ip_addresses(), st.integers(0, 65535), st.integers(0, 2**63 - 1))
def test_offset_id_round_trip(ip: object, port: int, offset: int) -> None:
    text = f"[{ip}]" if ":" in str(ip) else str(ip)
    found = parse_offset_message_id(offset_message_id(parse_host(f"{text}:{port}"), offset))
    assert found.commit_log_offset == offset
    assert parse_host(found.address) == parse_host(f"{text}:{port}")


def test_recorded_offset_id() -> None:
    found = parse_offset_message_id("7F000001000051AF0000000000000117")
    assert (found.address, found.commit_log_offset) == ("127.0.0.1:20911", 279)
    assert offset_message_id(parse_host("127.0.0.1:20911"), 279) == "7F000001000051AF0000000000000117"


NO_IDS = ["", "7F", "7F00 0001000051AF0000000000000117", "G" * 32, "0" * 33, "0" * 40, "٣" * 32]


def test_invalid_offset_ids_are_protocol_errors(subtests: pytest.Subtests) -> None:
    for text in NO_IDS:
        with subtests.test(text=text), pytest.raises(ProtocolError):
            parse_offset_message_id(text)


NO_HOSTS = ["", "127.0.0.1", "127.0.0.1:", "127.0.0.1:x", "broker:1", "127.0.0.1:99999999999"]


def test_a_stored_host_must_be_an_ip_address_and_port(subtests: pytest.Subtests) -> None:
    for address in NO_HOSTS:
        with subtests.test(address=address), pytest.raises(InvalidMessageError):
            parse_host(address)


def test_unique_key_has_javas_layout() -> None:
    """Machine, process, seed, milliseconds since the start of the month, counter."""
    keys = UniqueKeys(bytes([10, 0, 0, 1]), 0x1_2345, 0xABCD)
    now = datetime(2026, 3, 1, 0, 0, 1, 500_000, tzinfo=UTC).timestamp()
    assert keys.next(now) == "0A000001" + "2345" + "0000ABCD" + "000005DC" + "0001"
    assert keys.next(now).endswith("0002")


def test_unique_keys_differ_across_months_and_years() -> None:
    keys = UniqueKeys(bytes(16), 1, 1)
    times = [datetime(2026, 12, 31, 23, 59, 59, tzinfo=UTC), datetime(2027, 1, 1, tzinfo=UTC)]
    texts = [keys.next(time.timestamp()) for time in times for _ in range(1000)]
    assert len(set(texts)) == len(texts)
    assert {len(text) for text in texts} == {56}
    assert texts[-1][44:52] == "00000000"
