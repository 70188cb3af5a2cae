"""Retries and dead letters of failed messages: one script for a Java consumer and rmqd."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conformance import behaviour
from tests.conformance.attempts import Attempt, differing, steps
from tests.conformance.scripted import both
from tests.integration.consuming import dead_letters
from tests.rocketmq import RealCluster, release
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.seen import Handled

QUEUES = 2
# fields with the position of a copy, which differs by group
PLACE = (
    "queue_id",
    "queue_offset",
    "commit_log_offset",
    "offset_msg_id",
    "ORIGIN_MESSAGE_ID",
    "REAL_QID",
    "store_size",
)

# properties of the transport of a copy, which do not describe the message
ON_ITS_WAY = ("DELAY", "REAL_TOPIC", "WAIT", "RECONSUME_TIME", "MAX_RECONSUME_TIMES")
# properties that RocketMQ adds to each message that is not in a batch
ADDED = {"CLUSTER": "DefaultCluster"}
ADDED_SINCE_5 = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}


@pytest.fixture
def topic(rocketmq_short_delays: RealCluster, group: str) -> str:
    """Create a topic on a cluster whose retry delays are one second."""
    return rocketmq_short_delays.create_topic(fresh_name(group, "topic"), QUEUES)


def scripts(cluster: RealCluster, topic: str, queue: int | None = None, **messages: str) -> None:
    """Store a message for each script. Its key is the script's name."""
    with Producer(cluster.broker.address, topic, QUEUES) as producer:
        for key, script in messages.items():
            # clients give each message a unique id; brokers of 4.9 do not add a missing one
            properties = {"script": script, "colour": "red", "UNIQ_KEY": f"{topic}.{key}"}
            producer.send(f"body of {key}".encode(), key=key, tags="T", properties=properties, queue=queue)


def of_copy(attempt: Attempt, group: str) -> dict[str, object]:
    """Return the fields that must be equal in two copies of a message, with GROUP for the group's name."""
    values = attempt.without(*PLACE)
    properties = values["properties"]
    assert isinstance(properties, dict)
    return {**values, "properties": {name: str(v).replace(group, "GROUP") for name, v in properties.items()}}


def letter(dead: Handled, group: str) -> tuple[bytes, int, dict[str, str]]:
    """Return the body, reconsume times and properties that must be equal in two dead letters of a message."""
    left_out = {*PLACE, *ON_ITS_WAY, "RMQD_REASON", "RMQD_EXCEPTION", "RMQD_GROUP"}
    kept = {name: value.replace(group, "GROUP") for name, value in dead.properties.items() if name not in left_out}
    return dead.body, dead.reconsume_times, kept


@behaviour(
    "retries",
    "A dead letter has the message's body and properties, RETRY_TOPIC and ORIGIN_MESSAGE_ID",
    java="copied by the broker, which counts the last attempt as a reconsume time too",
    rmqd="sent, with RMQD_REASON, RMQD_EXCEPTION and RMQD_GROUP; reconsume times of the last attempt",
    checked="compared with a Java consumer: the dead letters",
)
@behaviour(
    "retries",
    "Failed messages are redelivered with levels 3, 4, …, and dead-lettered after max_reconsume_times",
    java="sent back; RECONSUME_LATER, null and an exception are the same",
    rmqd="sent back; an exception and Retry are the same",
    checked="compared with a Java consumer: reconsume times, levels and every field of each attempt",
)
async def test_failing_messages_go_java_s_way(
    rocketmq_short_delays: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Some messages succeed later, some never. A script may choose the level; -1 is a dead letter."""
    cluster = rocketmq_short_delays
    scripts(
        cluster,
        topic,
        good="ok",
        once="later,ok",
        thrice="later,later,later,ok",
        raises="throw,ok",
        null="null,ok",
        never="later",
        chosen="later:5,later:1,ok",
        given_up="later:-1",
        chosen_then_given_up="later:2,later:-1",
    )
    options: dict[str, Any] = {"java": {"max_reconsume_times": 3}, "max_reconsume_times": 3}
    async with both(cluster, group, tmp_path, [topic], consume_from_where="first_offset", **options) as sides:
        java, rmqd = await sides.finish(topic, attempts=1 + 2 + 4 + 2 + 2 + 4 + 3 + 1 + 2, retries=True)
    letters = [await dead_letters(cluster, side.group, 3) for side in (sides.java, sides.rmqd)]

    assert steps(rmqd.of("thrice")) == [(0, None), (1, "3"), (2, "4"), (3, "5")]
    for key in {*java.keys, *rmqd.keys}:
        ways = [
            {f"attempt {number}": of_copy(attempt, side.group) for number, attempt in enumerate(attempts.of(key or ""))}
            for side, attempts in ((sides.java, java), (sides.rmqd, rmqd))
        ]
        assert differing(ways[0], ways[1]) == {}, key
    counted = 1 if sides.is_beside_java else 0  # the broker copies Java's dead letters, and counts one more
    by_java, by_rmqd = (
        {dead.key: letter(dead, name) for dead in found}
        for name, found in zip((sides.java.group, sides.rmqd.group), letters, strict=True)
    )
    assert by_java.keys() == {"never", "given_up", "chosen_then_given_up"}
    sent = {"script": "later", "colour": "red", "UNIQ_KEY": f"{topic}.never", "KEYS": "never", "TAGS": "T"}
    added = ADDED if release.is_4() else ADDED | ADDED_SINCE_5
    assert by_rmqd["never"] == (b"body of never", 3, sent | added | {"RETRY_TOPIC": topic})
    assert letters[1][0].properties.keys() >= {"ORIGIN_MESSAGE_ID", "RMQD_REASON", "RMQD_EXCEPTION", "RMQD_GROUP"}
    for key, (body, times, properties) in by_java.items():
        assert by_rmqd[key] == (body, times - counted, properties), key


@behaviour(
    "retries",
    "ackIndex acknowledges a batch up to a message, and the rest is redelivered",
    java="context.setAckIndex, with CONSUME_SUCCESS",
    rmqd="batch.ack_index, or batch.ack and batch.retry for single messages",
    checked="compared with a Java consumer: the redelivered messages of a batch, and their levels",
)
async def test_ack_index_divides_a_batch(
    rocketmq_short_delays: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Two of four messages are acknowledged in one batch, and none of three in the other."""
    cluster = rocketmq_short_delays
    scripts(cluster, topic, queue=0, m1="ack:1,ok", m2="ok", m3="ok", m4="ok")
    scripts(cluster, topic, queue=1, n1="ack:-1,ok", n2="ok", n3="ok")
    options: dict[str, Any] = {"java": {"batch": 4}, "consume_message_batch_max_size": 4}
    async with both(cluster, group, tmp_path, [topic], consume_from_where="first_offset", **options) as sides:
        java, rmqd = await sides.finish(topic, attempts=7 + 2 + 3, retries=True)

    again = [(0, None), (1, "3")]
    for attempts in java, rmqd:
        ways = {key: steps(attempts.of(key or "")) for key in attempts.keys}
        assert ways == dict.fromkeys(("m1", "m2"), again[:1]) | dict.fromkeys(("m3", "m4", "n1", "n2", "n3"), again)
