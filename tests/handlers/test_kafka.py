"""`kafka`: records of messages, on the mock broker of librdkafka. tests/nightly has a real Kafka."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

import pytest
from confluent_kafka import KafkaException, Message

from rmqd_handlers.kafka import Kafka
from tests.handlers.messages import make_batch, make_message
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


async def test_an_unknown_client_setting_fails_the_start(kafka: Broker) -> None:
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
