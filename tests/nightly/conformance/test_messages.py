"""A Java listener and a handler of rmqd see the same messages, field by field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rmqd.handler_api.batch import Batch
from tests.conformance import behaviour
from tests.conformance.attempts import differing
from tests.conformance.scripted import both
from tests.consumer.members import member
from tests.integration.consuming import dead_letters
from tests.rocketmq import RealCluster, release
from tests.rocketmq.peers import PeerOptions, start_producer, start_program
from tests.rocketmq.producer import Producer


@behaviour(
    "messages",
    ("Batches have up to consume_message_batch_max_size messages, in the queue's order, from one queue each"),
    java="each pull is divided separately, so its last batch may be smaller",
    rmqd="a batch is full whenever enough messages are cached",
    checked="compared with a Java consumer: the batches of ten messages that wait in a queue",
)
async def test_batches_are_divided_as_in_java(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """Ten messages are divided into batches of at most four."""
    keys = [f"m{number}" for number in range(10)]
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send_batch(keys, queue=0)

    options: dict[str, Any] = {
        "java": {"batch": 4, "threads": 1},
        "consume_message_batch_max_size": 4,
        "concurrency": 1,
    }
    async with both(rocketmq, group, tmp_path, [topic], **options, consume_from_where="first_offset") as sides:
        await sides.handled(10)
        seen_by_java, seen_by_rmqd = await sides.stop()

    assert seen_by_java.batches() == seen_by_rmqd.batches() == [keys[:4], keys[4:8], keys[8:]]


@behaviour(
    "messages",
    "A message has the same fields, properties and body",
    java="adds MIN_OFFSET, MAX_OFFSET and CONSUME_START_TIME to the properties, and clears sysFlag's compressed bit",
    rmqd=(
        "the same fields by the same names; min_offset, max_offset and consume_start_timestamp are "
        "fields of the message; properties and sys_flag as stored"
    ),
    checked=(
        "compared with a Java consumer: every field of messages by a Java producer (also compressed) and"
        " in a batch, the ends of the queue, and the start of consumption"
    ),
)
async def test_a_message_has_the_same_fields_as_in_java(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """The fields include ids, offsets, sizes, checksums, hosts and times."""
    peer = PeerOptions(rocketmq.nameserver, topic, tmp_path / "sent")
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send("käse".encode(), key="one two", tags="T", properties={"colour": "röt", "empty": ""}, queue=1)
        producer.send_batch(["b0", "b1", "b2"], b"body")
    for prefix, size in ("small-", 64), ("large-", 10_000):  # the client compresses above 4 KiB
        with start_producer(peer, messages=4, prefix=prefix, bytes=size, tags="TagA") as java:
            assert java.wait() == 0

    async with both(rocketmq, group, tmp_path, [topic], consume_from_where="first_offset") as sides:
        await sides.handled(12)
        seen_by_java, seen_by_rmqd = await sides.stop()

    expected = {key: attempt.without() for key, attempt in seen_by_java.by_keys().items()}
    shown = {key: attempt.without() for key, attempt in seen_by_rmqd.by_keys().items()}
    assert differing(expected, shown) == {}
    assert len(expected) == 12
    for attempt in [*seen_by_java, *seen_by_rmqd]:
        assert attempt.properties["MIN_OFFSET"] == "0"
        assert int(attempt.properties["MAX_OFFSET"]) > attempt.queue_offset
        assert attempt.at_millis - 60_000 < int(attempt.properties["CONSUME_START_TIME"]) <= attempt.at_millis + 1
    assert {len(attempt.body) for attempt in seen_by_rmqd if (attempt.keys or "").startswith("large")} == {10_000}


@behaviour(
    "messages",
    "A message of a transaction is delivered once it is committed, with its transaction_id",
    java="the message's unique key; null if the message was not sent in a transaction, or was popped",
    rmqd="the same, with None for null; popped messages have it too",
    checked="a Java TransactionMQProducer commits and rolls back; compared with a Java consumer: every field",
    embedded="left out: it refuses transactions",
)
async def test_a_committed_message_has_its_transaction_id(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """A message that was rolled back is not delivered. A plain message has no transaction id."""
    if rocketmq.spec.version == release.EMBEDDED:
        pytest.skip("it refuses transactions")
    options: dict[str, object] = {"namesrv": rocketmq.nameserver, "topic": topic, "keys": "commit1,roll1,commit2"}
    with start_program("TransactionProducer", tmp_path, options) as producer:
        assert producer.wait() == 0
    with Producer(rocketmq.broker.address, topic) as plain:
        plain.send(b"plain", key="plain", properties={"UNIQ_KEY": "PLAIN"})

    async with both(rocketmq, group, tmp_path, [topic], consume_from_where="first_offset") as sides:
        java, rmqd = await sides.finish(topic, attempts=3)

    assert sorted(str(attempt.keys) for attempt in rmqd) == ["commit1", "commit2", "plain"]
    expected = {key: attempt.without() for key, attempt in java.by_keys().items()}
    assert differing(expected, {key: attempt.without() for key, attempt in rmqd.by_keys().items()}) == {}
    assert {attempt.keys: attempt.transaction_id == attempt.msg_id for attempt in rmqd} == {
        "commit1": True,
        "commit2": True,
        "plain": False,
    }


async def test_a_message_of_a_transaction_becomes_a_dead_letter(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """A copy with the property of a half message would be stored as a half message, and never be delivered."""
    if rocketmq.spec.version == release.EMBEDDED:
        pytest.skip("it refuses transactions")
    transaction: dict[str, object] = {"namesrv": rocketmq.nameserver, "topic": topic, "keys": "commit"}
    with start_program("TransactionProducer", tmp_path, transaction) as producer:
        assert producer.wait() == 0

    async def fail(_: Batch) -> None:
        raise ValueError

    options: dict[str, Any] = {
        "consume_mode": "orderly",
        "consume_from_where": "first_offset",
        "max_reconsume_times": 1,
    }
    async with member(
        rocketmq.nameserver,
        fail,
        group=group,
        subscriptions=[topic],
        suspend_current_queue_time_seconds=0.05,
        **options,
    ):
        (dead,) = await dead_letters(rocketmq, group, 1)

    assert (dead.key, dead.body) == ("commit", b"commit")
