"""`kafka`: records as the messages have them, on the mock broker of librdkafka. tests/nightly has a real Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest
from confluent_kafka import KafkaError, KafkaException, Message

from rmqd_handlers.kafka import Kafka
from rmqd_handlers.kafka.kafka_producer import KafkaRecord, RecordFailure, again_for, is_refused
from tests.handlers.messages import batch_of, decided, make_batch, make_message
from tests.handlers.options import not_refused
from tests.servers.kafka import KafkaServer, MockKafka

Broker: TypeAlias = MockKafka | KafkaServer


@pytest.fixture(scope="module")
def kafka() -> Broker:
    return MockKafka()


@asynccontextmanager
async def started(server: Broker, topic: str, **options: object) -> AsyncIterator[Kafka]:
    given = {"bootstrap_servers": server.address, "topic": topic, **options}
    handler = Kafka(Kafka.Options.model_validate(given))
    await handler.start()
    try:
        yield handler
    finally:
        await handler.stop()


def values(records: list[Message]) -> list[bytes]:
    return [record.value() or b"" for record in records]


async def test_a_message_is_a_record(kafka: Broker) -> None:
    topic = kafka.create_topic()
    properties = {"colour": "grün", "WAIT": "true", "MIN_OFFSET": "7"}
    message = make_message(b"\xff", keys="grüße", tags="paid", properties=properties)
    async with started(kafka, topic) as handler:
        await handler.handle(make_batch(message))

    [record] = kafka.records(topic)
    assert (record.key(), record.value()) == ("grüße".encode(), b"\xff")
    assert record.timestamp()[1] == message.born_timestamp
    assert dict(record.headers() or []) == {
        "KEYS": "grüße".encode(),
        "TAGS": b"paid",
        "colour": "grün".encode(),
        "UNIQ_KEY": message.msg_id.encode(),
    }


async def test_a_record_has_what_is_named(kafka: Broker) -> None:
    topic = kafka.create_topic()
    headers = {"cents": "$.cents", "from": "topic", "none": "$.none"}
    batch = batch_of(b'{"order": {"id": 7}, "cents": 1.10}', b"no JSON", b'{"other": 1}')
    async with started(kafka, topic, value="$.order", headers=headers) as handler:
        await handler.handle(batch)

    [record] = kafka.records(topic)
    assert (record.key(), record.value()) == (None, b'{"id":7}')
    assert record.headers() == [("cents", b"1.10"), ("from", b"orders")]
    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {1: "dead_letter", 2: "dead_letter"}
    assert "not JSON" in decided(batch)[1][1]


async def test_the_key_is_what_is_named(kafka: Broker) -> None:
    expected = {"keys": b"order-1", "sharding_key": b"ada", "property:colour": b"blue", "none": None}
    properties = {"__SHARDINGKEY": "ada", "colour": "blue"}
    topic = kafka.create_topic()
    for key in expected:
        message = make_message(key.encode(), keys="order-1", properties=properties)
        async with started(kafka, topic, key=key) as handler:
            await handler.handle(make_batch(message, make_message(b"without", queue_offset=1)))

    found = [(record.value(), record.key()) for record in kafka.records(topic)]
    wanted = [(name.encode(), key) for name, key in expected.items()] + [(b"without", None)] * len(expected)
    assert sorted(found, key=str) == sorted(wanted, key=str)


async def test_records_of_one_key_are_in_one_partition_in_their_order(kafka: Broker) -> None:
    topic = kafka.create_topic(partitions=4)
    messages = [make_message(b"%d" % n, keys=f"customer-{n % 7}", queue_offset=n) for n in range(700)]
    async with started(kafka, topic) as handler:
        await handler.handle(make_batch(*messages))

    by_key: dict[bytes, list[tuple[int | None, int]]] = {}
    for record in kafka.records(topic):
        by_key.setdefault(record.key() or b"", []).append((record.partition(), int(record.value() or b"")))
    assert len(by_key) == 7
    for found in by_key.values():
        assert len({partition for partition, _ in found}) == 1
        assert [number for _, number in found] == sorted(number for _, number in found)
        assert len(found) == 100


async def test_a_key_goes_where_javas_client_sends_it(kafka: Broker) -> None:
    """Known values of murmur2, as Kafka's own clients have them: 21 -> -973932308, foobar -> -790332482."""
    topic = kafka.create_topic(partitions=4)
    async with started(kafka, topic) as handler:
        await handler.handle(make_batch(make_message(b"21", keys="21"), make_message(b"x", keys="foobar")))

    placed = {record.key(): record.partition() for record in kafka.records(topic)}
    assert placed == {b"21": (-973932308 & 0x7FFFFFFF) % 4, b"foobar": (-790332482 & 0x7FFFFFFF) % 4}


async def test_the_topic_is_of_the_message(kafka: Broker) -> None:
    batch = make_batch(
        make_message(b"1", tags="eu"),
        make_message(b"2", tags="us", queue_offset=1),
        make_message(b"3", queue_offset=2),
        make_message(b"4", tags="no/topic", queue_offset=3),
    )
    async with started(kafka, "by-tags.{topic}-{tags}") as handler:
        await handler.handle(batch)

    assert values(kafka.records("by-tags.orders-eu")) == [b"1"]
    assert values(kafka.records("by-tags.orders-us")) == [b"2"]
    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {2: "dead_letter", 3: "dead_letter"}
    assert "has no tags" in decided(batch)[2][1]
    assert "no/topic" in decided(batch)[3][1]


def test_what_follows_a_refused_record_of_its_key_is_sent_again() -> None:
    """In requests of their own it may have been confirmed before."""
    written = [
        (make_message(), KafkaRecord("orders", key, b"%d" % place, [], 0))
        for place, key in enumerate((b"a", b"a", b"b", b"a", None, None))
    ]
    refused = RecordFailure(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), is_sent=True)
    left_out = RecordFailure(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), is_sent=False)

    again = again_for(written, [None, refused, None, None, refused, None], is_refused)
    none = again_for(written, [left_out, None, None, None, None, None], is_refused)

    assert [record.value for _, record in again] == [b"1", b"3", b"4"]
    assert none == []


async def test_a_setting_that_the_client_does_not_know_fails_the_start(kafka: Broker) -> None:
    with pytest.raises(KafkaException, match=r"no\.such\.setting"):
        async with started(kafka, "orders", client={"no.such.setting": True}):
            pass


def test_wrong_options_are_refused() -> None:
    wrong: list[dict[str, object]] = [
        {"bootstrap_servers": ""},
        {"topic": ""},
        {"topic": "a b"},
        {"topic": "orders-{no such field}"},
        {"topic": "orders-{tags"},
        {"key": "tags"},
        {"value": "no such field"},
        {"headers": {"a": "no such field"}},
        {"client": {"acks": "1"}},
        {"client": {"bootstrap.servers": "other:9092"}},
        {"client": {"delivery.timeout.ms": 1}},
        {"client": {"linger.ms": [1]}},
        {"retry_for": "500ms"},
    ]

    assert not_refused(Kafka.Options, wrong, bootstrap_servers="localhost:9092", topic="orders") == []
