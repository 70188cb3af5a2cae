"""What the tests of the engine against a real RocketMQ share: looks at the dead letters."""

from __future__ import annotations

import contextlib

from tests.consumer.members import member
from tests.rocketmq import ClusterError, RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.seen import Handled, Seen
from tests.waiting import eventually


def dead_letter_count(cluster: RealCluster, group: str) -> int:
    """How many dead letters a group has."""
    with contextlib.suppress(ClusterError):
        return sum(offsets.stored(cluster, f"%DLQ%{group}").values())
    return 0  # the topic is made with the first of them


async def dead_letters(cluster: RealCluster, group: str, count: int) -> list[Handled]:
    """A group's dead letters, once there are so many."""
    seen, topic = Seen(), f"%DLQ%{group}"
    await eventually(lambda: dead_letter_count(cluster, group) == count, f"{count} dead letters are stored")
    reader = fresh_name("dead_letters", "group")
    async with member(cluster.nameserver, seen, group=reader, subscriptions=[topic], consume_from_where="first_offset"):
        await eventually(lambda: len(seen.attempts) >= count, "the dead letters are read")
    return seen.attempts
