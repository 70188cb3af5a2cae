"""Topics with queue.type=BatchCQ, whose brokers store a batch as one record, in Java and in rmqd."""

from __future__ import annotations

from pathlib import Path

from tests.conformance import behaviour
from tests.conformance.attempts import Attempts, differing, steps
from tests.conformance.scripted import both
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.waiting import eventually

SIZE = 5
KEYS = [f"k{number}" for number in range(2 * SIZE)]
NOT_OF_MEMBERS = ("offset_msg_id", "store_size", "body_crc", "sys_flag")  # Java leaves them empty


def batch_topic(cluster: RealCluster, test: str, script: str = "ok") -> str:
    """A topic of one such queue with two batches of five. The tags are a and b in turn. `script` applies to k1."""
    topic = fresh_name(test, "topic")
    cluster.create_topic(topic, 1, attributes="+queue.type=BatchCQ")
    members = [{"UNIQ_KEY": f"{topic}.{key}", "script": script if key == "k1" else "ok"} for key in KEYS]
    tags = ["ab"[number % 2] for number in range(len(KEYS))]
    with Producer(cluster.broker.address, topic, 1) as producer:
        for at in range(0, len(KEYS), SIZE):
            part = slice(at, at + SIZE)
            producer.send_batch(KEYS[part], tags=tags[part], batch_tag="a", properties=members[part])
    return topic


def fields(attempts: Attempts) -> dict[str | None, dict[str, object]]:
    """The fields of each member by its keys. Java's decoder adds WAIT."""
    return {keys: attempt.without(*NOT_OF_MEMBERS, "WAIT") for keys, attempt in attempts.by_keys().items()}


@behaviour(
    "messages",
    "Each member of a batch that is stored as one record (queue.type=BatchCQ) is a message",
    java="unwraps it; a member has no offset id, size or checksum",
    rmqd="the same; a member has the record's offset id and size, and the checksum of its body",
    checked="compared with a Java consumer: every other field of two batches, offsets included",
    since="5.0",
)
async def test_members_of_a_stored_batch_are_messages(rocketmq: RealCluster, group: str, tmp_path: Path) -> None:
    """Each member has its own offset."""
    topic = batch_topic(rocketmq, group)
    async with both(rocketmq, group, tmp_path, [topic], consume_from_where="first_offset") as sides:
        java, rmqd = await sides.finish(topic, attempts=len(KEYS))
    assert differing(fields(java), fields(rmqd)) == {}
    assert {attempt.keys: attempt.queue_offset for attempt in rmqd} == {key: at for at, key in enumerate(KEYS)}


@behaviour(
    "offsets",
    "A group whose offset is in the middle of a batch (queue.type=BatchCQ) continues there",
    java="receives the whole batch again",
    rmqd="receives the rest of the batch",
    checked="compared with a Java consumer at the same committed offset",
    since="5.0",
)
async def test_a_group_continues_in_the_middle_of_a_batch(rocketmq: RealCluster, group: str, tmp_path: Path) -> None:
    """Two members of the second batch were handled before."""
    topic, names, middle = batch_topic(rocketmq, group), (f"{group}_java", f"{group}_rmqd"), SIZE + 2
    [queue] = offsets.queues(rocketmq, topic)
    for name in names:
        rocketmq.create_group(name, {})
        offsets.commit(rocketmq, name, topic, queue, middle)
    async with both(rocketmq, group, tmp_path, [topic], names=names) as sides:
        by_java = KEYS[SIZE:] if sides.is_beside_java else KEYS[middle:]
        await eventually(lambda: set(sides.java.attempts.keys) >= set(by_java), "Java handles its part")
        await eventually(lambda: offsets.lag(rocketmq, sides.rmqd.group, topic) == 0, "rmqd commits the rest")
        java, rmqd = await sides.stop()
    assert sorted(filter(None, java.keys)) == by_java
    assert sorted(filter(None, rmqd.keys)) == KEYS[middle:]


@behaviour(
    "retries",
    ("If one member of a batch stored as one record (queue.type=BatchCQ) fails, only that member is redelivered"),
    java="sent to the retry topic as a separate message, because send-back is not possible",
    rmqd="the same",
    checked="compared with a Java consumer: every attempt, with reconsume times and levels",
    since="5.0",
)
async def test_only_the_failed_member_of_a_batch_is_redelivered(
    rocketmq_short_delays: RealCluster, group: str, tmp_path: Path
) -> None:
    """The member keeps its body and its properties."""
    cluster, topic = rocketmq_short_delays, batch_topic(rocketmq_short_delays, group, script="later,later,ok")
    async with both(cluster, group, tmp_path, [topic], consume_from_where="first_offset") as sides:
        java, rmqd = await sides.finish(topic, attempts=len(KEYS) + 2, retries=True)
    assert sorted(filter(None, java.keys)) == sorted(filter(None, rmqd.keys)) == sorted([*KEYS, "k1", "k1"])
    assert steps(java.of("k1")) == steps(rmqd.of("k1")) == [(0, None), (1, "3"), (2, "4")]
    for one in (java, rmqd):
        again = one.of("k1")[2]
        assert (again.topic, again.body, again.tags, again.properties["script"]) == (topic, b"x", "b", "later,later,ok")


@behaviour(
    "filters",
    "A tag filter selects single members of a batch (queue.type=BatchCQ)",
    java="the broker filters by the batch's tag, then the client by the members' tags",
    rmqd="the same",
    checked="compared with a Java consumer, with batches of members with alternating tags",
    since="5.0",
)
async def test_tags_select_single_members_of_a_batch(rocketmq: RealCluster, group: str, tmp_path: Path) -> None:
    """Skipped members do not count as lag of rmqd."""
    topic = batch_topic(rocketmq, group)
    async with both(rocketmq, group, tmp_path, {topic: "a"}, consume_from_where="first_offset") as sides:
        await sides.handled(SIZE)
        await eventually(lambda: offsets.lag(rocketmq, sides.rmqd.group, topic) == 0, "rmqd commits all")
        java, rmqd = await sides.stop()
    assert sorted(filter(None, java.keys)) == sorted(filter(None, rmqd.keys)) == KEYS[::2]
