"""Start offsets of new and known groups: Java and rmqd over one topic."""

from __future__ import annotations

import asyncio
import datetime
import time
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import behaviour
from tests.conformance.attempts import Attempts
from tests.conformance.scripted import both
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.waiting import eventually

QUEUES = 2


def kinds(attempts: Attempts) -> set[str]:
    """Return the keys without their numbers."""
    return {(attempt.keys or "").rstrip("0123456789") for attempt in attempts}


@behaviour(
    "starting offsets",
    "A new group starts at the offset that consume_from_where selects",
    java="on a topic whose first message is still in memory, `last_offset` and a timestamp begin at 0 anyway",
    rmqd="as configured, also on such a topic",
    checked="compared with a Java consumer, in a topic with messages from before and after the timestamp",
    differs="a broker of 4.9 cannot report that a group is new: on such a topic rmqd begins at 0 too, like Java",
)
@pytest.mark.parametrize(
    ("where", "wanted"),
    [("first_offset", {"early", "late", "new"}), ("timestamp", {"late", "new"}), ("last_offset", {"new"})],
)
async def test_a_new_group_starts_where_it_says(
    rocketmq: RealCluster, group: str, tmp_path: Path, where: str, wanted: set[str]
) -> None:
    """Messages are sent before the timestamp, after it, and after the group has started."""
    topic = rocketmq.create_topic(fresh_name(where, "topic"), QUEUES)
    with Producer(rocketmq.broker.address, topic, QUEUES) as producer:
        for number in range(4):
            producer.send(key=f"early{number}")
        await asyncio.sleep(1.1 - time.time() % 1)  # Java's timestamp has whole seconds
        moment = int(time.time())
        for number in range(4):
            producer.send(key=f"late{number}")
        java = {
            "from_where": f"CONSUME_FROM_{where.upper()}",
            "consume_timestamp": datetime.datetime.fromtimestamp(moment).strftime("%Y%m%d%H%M%S"),  # noqa: DTZ006
        }
        options: dict[str, Any] = {"consume_from_where": where, "consume_timestamp_ms": moment * 1000}
        async with both(rocketmq, group, tmp_path, [topic], java=java, **options) as sides:
            await eventually(lambda: len(sides.rmqd.member.owned()) == QUEUES, "rmqd acquires the queues")
            for number in range(4):
                producer.send(key=f"new{number}")
            everything = {"early", "late", "new"}
            expected = everything if rocketmq.spec.version == "4.9.7" else wanted
            if sides.is_beside_java:
                await eventually(lambda: len(sides.java.attempts) >= 12, "Java handles all messages")
            await eventually(lambda: len(sides.rmqd.attempts) >= 4 * len(expected), f"rmqd handles {expected}")
            seen_by_java, seen_by_rmqd = await sides.stop()

    assert kinds(seen_by_java) == (everything if sides.is_beside_java else expected)
    assert kinds(seen_by_rmqd) == expected
    assert len(seen_by_rmqd.by_keys()) == 4 * len(expected)
    assert offsets.committed(rocketmq, sides.rmqd.group, topic) == offsets.stored(rocketmq, topic)


@behaviour(
    "starting offsets",
    "A known group continues at its committed offset, whatever consume_from_where says",
    java="the broker's offset",
    rmqd="the same",
    checked="Java continues where rmqd ended, and rmqd where Java ended",
)
async def test_a_known_group_continues_at_the_offset_of_the_other_client(
    rocketmq: RealCluster, group: str, tmp_path: Path
) -> None:
    """Both groups consume the first half of the messages, then the clients swap their groups."""
    topic = rocketmq.create_topic(fresh_name("changes", "topic"), QUEUES)
    java = {"from_where": "CONSUME_FROM_FIRST_OFFSET"}
    with Producer(rocketmq.broker.address, topic, QUEUES) as producer:
        for number in range(10):
            producer.send(key=f"first{number}")
        async with both(rocketmq, group, tmp_path, [topic], java=java, consume_from_where="first_offset") as sides:
            await sides.handled(10)
            await sides.stop()
        for number in range(10):
            producer.send(key=f"second{number}")
    names = sides.rmqd.group, sides.java.group
    async with both(
        rocketmq, group, tmp_path / "again", [topic], java=java, names=names, consume_from_where="first_offset"
    ) as sides:
        await sides.handled(10)
        seen_by_java, seen_by_rmqd = await sides.stop()

    wanted = {f"second{number}" for number in range(10)}
    assert seen_by_java.by_keys().keys() == seen_by_rmqd.by_keys().keys() == wanted
