"""Size limits of routes, resets and headers, checked before they use the memory."""

from __future__ import annotations

import pytest

from rmqd.errors import ProtocolError
from rmqd.wire.bodies.route_data import BrokerData, QueueData, TopicRouteData
from rmqd.wire.command import MAX_HEADER_FIELDS, RemotingCommand, decode_command, encode_command, encode_request
from rmqd.wire.fields import MAX_BROKERS, MAX_QUEUES, MAX_RESET_BYTES, MAX_RESET_OBJECTS, MAX_ROUTE_BYTES, check_body


def route(brokers: int, queues_each: int) -> TopicRouteData:
    names = [f"broker-{number}" for number in range(brokers)]
    return TopicRouteData(
        tuple(QueueData(name, queues_each, queues_each, 6) for name in names),
        tuple(BrokerData("c", name, {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}) for name in names),
    )


@pytest.mark.parametrize("strict", [True, False])
def test_a_route_at_the_limits_is_read(strict: bool) -> None:
    for large in (route(MAX_BROKERS, MAX_QUEUES // MAX_BROKERS), route(1, MAX_QUEUES)):
        assert TopicRouteData.from_json(large.to_json(strict=strict)) == large


TOO_LARGE = {
    "queues of one broker": (route(1, MAX_QUEUES + 1).to_json(), "at most 65536"),
    "queues in all": (route(2, MAX_QUEUES // 2 + 1).to_json(), "65538 queues of one topic"),
    "brokers": (route(MAX_BROKERS + 1, 1).to_json(), "4097 brokers"),
    "bytes": (b'{"queueDatas":[' + b"1," * (MAX_ROUTE_BYTES // 2) + b"1]}", "bytes"),
    "objects": (b'{"a":[' + b"{0:1}," * 100_000 + b"1]}", "objects"),
}


def test_a_route_beyond_a_limit_is_refused(subtests: pytest.Subtests) -> None:
    for name, (body, reason) in TOO_LARGE.items():
        with subtests.test(name), pytest.raises(ProtocolError, match=reason):
            TopicRouteData.from_json(body)


def test_a_reset_beyond_a_limit_is_refused() -> None:
    limits = "a reset", MAX_RESET_BYTES, MAX_RESET_OBJECTS
    check_body(b"{" * 2 * MAX_QUEUES, *limits)
    for body in (b" " * (8 * 1024 * 1024 + 1), b"{" * (2 * MAX_QUEUES + 1)):
        with pytest.raises(ProtocolError, match="a reset of"):
            check_body(body, *limits)


def test_a_header_has_a_limited_number_of_fields() -> None:
    """The length of a remark is not limited."""
    header = encode_command(RemotingCommand(1, remark="x" * 1_000_000))[4:]
    assert decode_command(header).remark == "x" * 1_000_000
    many = encode_request(1, 1, {f"field-{number}-of-many": "" for number in range(MAX_HEADER_FIELDS + 1)})[4:]
    with pytest.raises(ProtocolError, match="fields"):
        decode_command(many)
