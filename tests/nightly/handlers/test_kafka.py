"""`kafka` on a real Kafka: records, refused records, and a Kafka that is unavailable for a while."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pytest
from confluent_kafka import KafkaError, KafkaException, admin

from rmqd_handlers.kafka.handler import NotConfirmedError, TopicMissingError
from rmqd_handlers.kafka.kafka_producer import KafkaRecord, RecordFailure, records_to_repeat
from tests.handlers.messages import batch_of, decided, make_batch, make_message
from tests.handlers.test_kafka import (
    Broker,
    started,
    test_a_message_is_a_record,
    test_records_of_one_key_are_in_one_partition_in_their_order,
    values,
)
from tests.servers.kafka import KafkaServer

ANSWER_SECONDS: Final = 30.0

pytestmark = pytest.mark.process

__all__ = ["test_a_message_is_a_record", "test_records_of_one_key_are_in_one_partition_in_their_order"]


@pytest.fixture
def kafka(kafka_server: KafkaServer) -> KafkaServer:
    """The daily tests run on a real Kafka."""
    return kafka_server


@contextmanager
def denied(server: KafkaServer, kind: str, name: str, operation: str) -> Iterator[None]:
    """Deny one operation to all users, and allow the others."""
    acl: Any = admin  # its types are incomplete
    resource = acl.ResourceType[kind], name, acl.ResourcePatternType.LITERAL
    everybody = "User:ANONYMOUS", "*"
    rules = [
        acl.AclBinding(*resource, *everybody, acl.AclOperation.ALL, acl.AclPermissionType.ALLOW),
        acl.AclBinding(*resource, *everybody, acl.AclOperation[operation], acl.AclPermissionType.DENY),
    ]
    lifted = acl.AclBindingFilter(*resource, None, None, acl.AclOperation.ANY, acl.AclPermissionType.ANY)
    client = server.admin()
    for done in client.create_acls(rules).values():
        done.result(ANSWER_SECONDS)
    try:
        yield
    finally:
        for removed in client.delete_acls([lifted]).values():
            removed.result(ANSWER_SECONDS)


@pytest.mark.parametrize("who", ["client", "broker"])
async def test_only_the_record_that_is_too_large_is_refused(kafka_server: KafkaServer, who: str) -> None:
    topic = kafka_server.create_topic(max_message_bytes="2000" if who == "broker" else "1000000")
    client = {"message.max.bytes": 2000} if who == "client" else {}
    bodies = [b"%d" % n for n in range(10)]
    bodies[4] = b"x" * 3000
    batch = batch_of(*bodies, keys="one")
    async with started(kafka_server, topic, client=client) as handler:
        await handler.handle(batch)

    assert values(kafka_server.records(topic))[-9:] == [body for body in bodies if len(body) < 3000]
    [(place, (outcome, reason))] = decided(batch).items()
    assert (place, outcome) == (4, "dead_letter")
    assert "3000 bytes" in reason
    assert "too large" in reason


async def test_other_batches_in_the_request_of_a_refused_record_are_written(kafka_server: KafkaServer) -> None:
    """The client sends records of several batches in one request, and the broker refuses the whole request."""
    topic = kafka_server.create_topic(max_message_bytes="2000")
    batches = [batch_of(*[b"%d" % n] * 10) for n in range(8)]
    bad = batch_of(b"x" * 3000)
    async with started(kafka_server, topic, client={"linger.ms": 200}) as handler:
        await asyncio.gather(*map(handler.handle, [*batches[:4], bad, *batches[4:]]))

    assert all(decided(batch) == {} for batch in batches)
    assert list(decided(bad)) == [0]
    assert sorted(values(kafka_server.records(topic))) == sorted(b"%d" % n for n in range(8) for _ in range(10))


async def test_a_compacted_topic_refuses_only_the_record_without_a_key(kafka_server: KafkaServer) -> None:
    topic = kafka_server.create_topic(cleanup_policy="compact")
    batch = make_batch(make_message(b"1", keys="a"), make_message(b"2"), make_message(b"3", keys="b"))
    async with started(kafka_server, topic) as handler:
        await handler.handle(batch)

    assert values(kafka_server.records(topic)) == [b"1", b"3"]
    assert list(decided(batch)) == [1]


async def test_a_record_older_than_the_topics_limit_is_refused(kafka_server: KafkaServer) -> None:
    topic = kafka_server.create_topic(message_timestamp_before_max_ms="1000")
    batch = batch_of(b"1")
    async with started(kafka_server, topic, on_invalid="skip") as handler:
        await handler.handle(batch)

    assert kafka_server.records(topic) == []
    assert {place: outcome for place, (outcome, _) in decided(batch).items()} == {0: "ack"}


@pytest.mark.slow
async def test_calls_wait_until_a_killed_kafka_is_restarted(
    kafka_server: KafkaServer, caplog: pytest.LogCaptureFixture
) -> None:
    topic = kafka_server.create_topic(partitions=2)
    async with started(kafka_server, topic, retry_for="4m") as handler:
        await asyncio.gather(*(handler.handle(batch_of(b"%d" % n, first=n)) for n in range(6)))
        await asyncio.to_thread(kafka_server.kill)
        waiting = [asyncio.create_task(handler.handle(batch_of(b"%d" % n, first=n))) for n in range(6, 12)]
        await asyncio.to_thread(kafka_server.start)
        await asyncio.gather(*waiting)

    assert sorted(map(int, values(kafka_server.records(topic)))) == list(range(12))
    assert [record.message for record in caplog.records].count("handler.counterpart_away") == 6


@pytest.mark.slow
async def test_a_batch_fails_if_kafka_stays_unavailable(kafka_server: KafkaServer) -> None:
    topic = kafka_server.create_topic()
    async with started(kafka_server, topic, retry_for="1s") as handler:
        await asyncio.to_thread(kafka_server.kill)
        batch = batch_of(b"1", b"2")
        try:
            with pytest.raises(NotConfirmedError, match="not confirmed 2 of 2 records"):
                await handler.handle(batch)
        finally:
            await asyncio.to_thread(kafka_server.start)
        assert decided(batch) == {}  # so that it is retried as a whole

    async with started(kafka_server, topic, retry_for="1m") as handler:
        await handler.handle(batch)
    assert values(kafka_server.records(topic)) == [b"1", b"2"]


async def test_a_client_with_a_fatal_error_is_replaced(kafka_server: KafkaServer) -> None:
    """Without the permission IDEMPOTENT_WRITE librdkafka fails permanently; an operator may grant it later."""
    topic = kafka_server.create_topic()
    with contextlib.ExitStack() as rights:
        rights.enter_context(denied(kafka_server, "BROKER", "kafka-cluster", "IDEMPOTENT_WRITE"))
        rights.enter_context(denied(kafka_server, "TOPIC", "*", "WRITE"))
        async with started(kafka_server, topic, retry_for="10s") as handler:
            batch = batch_of(b"1")
            with pytest.raises(NotConfirmedError, match="Cluster authorization failed"):
                await handler.handle(batch)
            assert decided(batch) == {}
            rights.close()
            await handler.handle(batch)

    assert values(kafka_server.records(topic)) == [b"1"]


async def test_a_batch_fails_without_write_permission_for_the_topic(kafka_server: KafkaServer) -> None:
    topic = kafka_server.create_topic()
    async with started(kafka_server, topic, retry_for="5s") as handler:
        with denied(kafka_server, "TOPIC", topic, "WRITE"):
            batch = batch_of(b"1")
            with pytest.raises(NotConfirmedError, match=r"(?i)authorization"):
                await handler.handle(batch)
            assert decided(batch) == {}
        await handler.handle(batch)

    assert values(kafka_server.records(topic)) == [b"1"]


async def test_an_unreachable_kafka_fails_the_start(kafka_server: KafkaServer) -> None:
    with pytest.raises(KafkaException):
        async with started(kafka_server, "orders", bootstrap_servers="127.0.0.1:1"):
            pass


async def test_a_missing_topic_fails_the_start(kafka_server: KafkaServer) -> None:
    with (
        denied(kafka_server, "BROKER", "kafka-cluster", "CREATE"),
        denied(kafka_server, "TOPIC", "missing", "CREATE"),
        pytest.raises(TopicMissingError, match="missing"),
    ):
        async with started(kafka_server, "missing"):
            pass


async def test_a_record_has_the_configured_value_and_headers(kafka: Broker) -> None:
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


async def test_a_record_has_the_configured_key(kafka: Broker) -> None:
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


async def test_a_key_has_the_same_partition_as_with_javas_client(kafka: Broker) -> None:
    """Known murmur2 values of Kafka's own clients: 21 -> -973932308, foobar -> -790332482."""
    topic = kafka.create_topic(partitions=4)
    async with started(kafka, topic) as handler:
        await handler.handle(make_batch(make_message(b"21", keys="21"), make_message(b"x", keys="foobar")))

    placed = {record.key(): record.partition() for record in kafka.records(topic)}
    assert placed == {b"21": (-973932308 & 0x7FFFFFFF) % 4, b"foobar": (-790332482 & 0x7FFFFFFF) % 4}


async def test_a_topic_template_contains_values_of_the_message(kafka: Broker) -> None:
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


def test_later_records_with_the_key_of_a_refused_record_are_sent_again() -> None:
    """They may already be confirmed, in another request."""
    written = [
        (make_message(), KafkaRecord("orders", key, b"%d" % place, [], 0))
        for place, key in enumerate((b"a", b"a", b"b", b"a", None, None))
    ]
    refused = RecordFailure(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), is_sent=True)
    left_out = RecordFailure(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE), is_sent=False)

    again, none = (
        records_to_repeat(written, failures, lambda failure: failure.is_sent and failure.is_refusal)
        for failures in ([None, refused, None, None, refused, None], [left_out, None, None, None, None, None])
    )

    assert [record.value for _, record in again] == [b"1", b"3", b"4"]
    assert none == []
