"""Order, retries, dead letters and commits of an orderly Java consumer and an orderly group of rmqd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance import behaviour
from tests.conformance.attempts import Attempts
from tests.conformance.scripted import both
from tests.integration.consuming import dead_letters
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.waiting import eventually

ORDERLY = {"orderly": "true"}


@pytest.fixture
def queue(rocketmq: RealCluster, group: str) -> str:
    """Create a topic of one queue."""
    return rocketmq.create_topic(fresh_name(group, "topic"), 1)


def scripts(cluster: RealCluster, topic: str, **messages: str) -> None:
    """Store a message for each script in the one queue. Its key is the script's name."""
    with Producer(cluster.broker.address, topic, 1) as producer:
        for key, script in messages.items():
            producer.send(b"x", key=key, properties={"script": script})


def order(attempts: Attempts) -> list[tuple[str | None, int]]:
    """Return keys and reconsume times of the attempts, in order."""
    return [(attempt.keys, attempt.reconsume_times) for attempt in attempts]


@behaviour(
    "orderly",
    ("A failed message is retried in place, and no later message of its queue is handled before it succeeds"),
    java="SUSPEND_CURRENT_QUEUE_A_MOMENT, null and an exception are the same; reconsume times grow in memory",
    rmqd="Suspend, Retry and an exception are the same",
    checked="compared with a Java consumer: every attempt of a queue, in order, with its reconsume times",
)
async def test_a_failed_message_blocks_its_queue(rocketmq: RealCluster, queue: str, group: str, tmp_path: Path) -> None:
    """With the suspension time of the group, and with times that the listener chooses."""
    scripts(
        rocketmq,
        queue,
        first="ok",
        twice="suspend:20,suspend:20,ok",
        raises="throw,ok",
        null="null,ok",
        waits="suspend,ok",
        last="ok",
    )
    java = {**ORDERLY, "suspend_millis": 50}
    async with both(
        rocketmq,
        group,
        tmp_path,
        [queue],
        java=java,
        consume_mode="orderly",
        consume_from_where="first_offset",
        suspend_current_queue_time_seconds=0.05,
    ) as sides:
        seen_by_java, seen_by_rmqd = await sides.finish(queue, attempts=6 + 5)

    assert order(seen_by_rmqd) == order(seen_by_java)
    assert order(seen_by_rmqd)[:4] == [("first", 0), ("twice", 0), ("twice", 1), ("twice", 2)]


@behaviour(
    "orderly",
    "A failed batch is retried as a whole; its messages are from one queue and in order",
    java="the batch goes back into the cache; the next batch may have more messages",
    rmqd="the handler receives the same batch again",
    checked="compared with a Java consumer: the messages of batch after batch",
)
async def test_a_failed_batch_is_retried_as_a_whole(
    rocketmq: RealCluster, queue: str, group: str, tmp_path: Path
) -> None:
    """Seven messages in batches of three."""
    scripts(rocketmq, queue, m0="ok", m1="ok", m2="ok", m3="suspend:20,ok", m4="ok", m5="ok", m6="ok")
    options: dict[str, Any] = {"java": {**ORDERLY, "batch": 3}, "consume_message_batch_max_size": 3}
    async with both(
        rocketmq, group, tmp_path, [queue], consume_mode="orderly", consume_from_where="first_offset", **options
    ) as sides:
        seen_by_java, seen_by_rmqd = await sides.finish(queue, attempts=10)

    expected = [["m0", "m1", "m2"], ["m3", "m4", "m5"], ["m3", "m4", "m5"], ["m6"]]
    assert seen_by_java.batches() == seen_by_rmqd.batches() == expected
    assert order(seen_by_rmqd) == order(seen_by_java)


@behaviour(
    "orderly",
    "After max_reconsume_times a message is dead-lettered, and its queue continues",
    java="sent to the retry topic, which the broker turns into a dead letter because the group holds locks",
    rmqd="sent to the dead letters, with the reason",
    checked="compared with a Java consumer: every attempt, and both dead letters",
    differs="Java's dead letter is delayed first, by the delay level of its last attempt",
)
async def test_the_limit_makes_a_dead_letter(rocketmq_short_delays: RealCluster, group: str, tmp_path: Path) -> None:
    """Three attempts with a limit of two."""
    cluster = rocketmq_short_delays
    queue = cluster.create_topic(fresh_name(group, "topic"), 1)
    scripts(cluster, queue, first="ok", never="suspend:20", last="ok")
    options: dict[str, Any] = {"java": {**ORDERLY, "max_reconsume_times": 2}, "max_reconsume_times": 2}
    async with both(
        cluster, group, tmp_path, [queue], consume_mode="orderly", consume_from_where="first_offset", **options
    ) as sides:
        seen_by_java, seen_by_rmqd = await sides.finish(queue, attempts=5)
    letters = [await dead_letters(cluster, side.group, 1) for side in (sides.java, sides.rmqd)]

    assert order(seen_by_rmqd) == order(seen_by_java)
    assert order(seen_by_rmqd) == [("first", 0), ("never", 0), ("never", 1), ("never", 2), ("last", 0)]
    by_java, by_rmqd = (found[0] for found in letters)
    assert (by_rmqd.key, by_rmqd.body) == (by_java.key, by_java.body) == ("never", b"x")
    assert by_rmqd.properties["RETRY_TOPIC"] == by_java.properties["RETRY_TOPIC"] == queue


@behaviour(
    "orderly",
    ("With auto_commit off, handled messages stay uncommitted until COMMIT, and ROLLBACK redelivers all of them"),
    java="ConsumeOrderlyContext.setAutoCommit(false), COMMIT, ROLLBACK",
    rmqd="auto_commit: false, batch.commit(), batch.rollback()",
    checked="compared with a Java consumer: every attempt in order, and both groups' offsets",
)
async def test_manual_commits(rocketmq: RealCluster, queue: str, group: str, tmp_path: Path) -> None:
    """Two messages are committed together, two are rolled back once, and the last stays uncommitted."""
    scripts(rocketmq, queue, m0="ok", m1="commit", m2="ok", m3="rollback,commit", m4="ok")
    java = {**ORDERLY, "auto_commit": "false", "suspend_millis": 50}
    async with both(
        rocketmq,
        group,
        tmp_path,
        [queue],
        java=java,
        consume_mode="orderly",
        consume_from_where="first_offset",
        auto_commit=False,
        suspend_current_queue_time_seconds=0.05,
    ) as sides:
        await sides.handled(7)
        await eventually(lambda: committed(rocketmq, sides.rmqd.group, queue) == [4], "rmqd commits offset 4")
        seen_by_java, seen_by_rmqd = await sides.stop()

    assert [keys for keys, _ in order(seen_by_rmqd)] == ["m0", "m1", "m2", "m3", "m2", "m3", "m4"]
    assert order(seen_by_rmqd) == order(seen_by_java)
    for name in (sides.java.group, sides.rmqd.group):
        await eventually(lambda: committed(rocketmq, name, queue) == [4], f"{name} left four committed")  # noqa: B023 awaited in the loop


def committed(cluster: RealCluster, group: str, topic: str) -> list[int]:
    """Return the group's committed offsets."""
    return list(offsets.committed(cluster, group, topic).values())
