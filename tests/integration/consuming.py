"""What the tests of the engine against a real RocketMQ share: handlers that remember, and looks at the dead letters."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass

from rmqd.handler import Batch
from rmqd.wire.message_queue import MessageQueue
from tests.consumer.members import member
from tests.rocketmq import ClusterError, RealCluster, offsets
from tests.rocketmq.fixtures import fresh_name
from tests.waiting import eventually


@dataclass(frozen=True, slots=True)
class Handled:
    """A message as a handler saw it."""

    topic: str
    body: bytes
    queue: MessageQueue
    offset: int
    reconsume_times: int
    properties: dict[str, str]
    at: float

    @property
    def key(self) -> str:
        return self.properties["KEYS"]

    @property
    def delay_level(self) -> str | None:
        """The level at which it was sent back the last time."""
        return self.properties.get("DELAY")


class Seen:
    """A handler that remembers every attempt; to be wrapped by one that fails where a test wants it."""

    def __init__(self) -> None:
        self.attempts: list[Handled] = []

    async def __call__(self, batch: Batch) -> None:
        now = asyncio.get_running_loop().time()
        self.attempts += [
            Handled(m.topic, m.body, m.message_queue, m.queue_offset, m.reconsume_times, dict(m.properties), now)
            for m in batch
        ]

    @property
    def keys(self) -> list[str]:
        return [attempt.key for attempt in self.attempts]

    def of(self, key: str) -> list[Handled]:
        return [attempt for attempt in self.attempts if attempt.key == key]


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
