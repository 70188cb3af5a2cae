"""Dead letters and times for resets, for tests of the engine at a broker."""

from __future__ import annotations

import contextlib
import time

from tests.consumer.members import member
from tests.rocketmq import ClusterError, RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.seen import Handled, Seen
from tests.waiting import eventually, wait_until


def dead_letter_count(cluster: RealCluster, group: str) -> int:
    """How many dead letters a group has."""
    with contextlib.suppress(ClusterError):
        return sum(offsets.stored(cluster, f"%DLQ%{group}").values())
    return 0  # the topic is created with the first dead letter


async def dead_letters(cluster: RealCluster, group: str, count: int) -> list[Handled]:
    """A group's dead letters, once there are `count` of them."""
    seen, topic = Seen(), f"%DLQ%{group}"
    await eventually(lambda: dead_letter_count(cluster, group) == count, f"{count} dead letters are stored")
    reader = fresh_name("dead_letters", "group")
    async with member(cluster.nameserver, seen, group=reader, subscriptions=[topic], consume_from_where="first_offset"):
        await eventually(lambda: len(seen.attempts) >= count, "the dead letters are read")
    return seen.attempts


def now_ms() -> int:
    """The time of a millisecond in which no message is stored: earlier messages are before it, new ones after it."""
    begin = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > begin + 1, "the millisecond is over")
    moment = time.time_ns() // 1_000_000
    wait_until(lambda: time.time_ns() // 1_000_000 > moment + 1, "the next millisecond is over too")
    return moment


def one_in_each_queue(rocketmq: RealCluster) -> int:
    """RocketMQ 4 may find the message before the wanted message, and the last message for a time after it."""
    return 8 if rocketmq.spec.version.startswith("4") else 0
