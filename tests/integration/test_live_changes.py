"""Filters and limits that change while a group runs, at a real broker: nothing that both filters match is lost."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from rmqd.consumer.consumer_options import Subscription
from tests.conformance import behaviour
from tests.consumer.groups import group_options
from tests.consumer.members import Member, member
from tests.rocketmq import RealCluster, offsets
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

SQL_A_OR_C = Subscription("TAGS IS NOT NULL AND TAGS IN ('a', 'c')", "SQL92")
SQL_A_OR_B = Subscription("TAGS IS NOT NULL AND TAGS IN ('a', 'b')", "SQL92")
TAGS = {"a || b": "b", "a || c": "c", SQL_A_OR_C.expression: "c", SQL_A_OR_B.expression: "b"}
"""Filters, each with the tag that the other one does not have."""
PAUSE_SECONDS = 0.002


class Sender:
    """Sends messages of the tags a, b and c, one every few milliseconds, until it is told to end."""

    def __init__(self, cluster: RealCluster, topic: str) -> None:
        self._producer = Producer(cluster.broker.address, topic)
        self._ending = False
        self.sent = 0

    def run(self) -> None:
        with self._producer:
            while not self._ending:
                self._producer.send(key=f"{'abc'[self.sent % 3]}{self.sent}", tags="abc"[self.sent % 3])
                self.sent += 1
                time.sleep(PAUSE_SECONDS)

    def end(self) -> None:
        self._ending = True

    @property
    def wanted(self) -> set[str]:
        """The keys of what every filter matches."""
        return {f"a{number}" for number in range(0, self.sent, 3)}


@contextlib.asynccontextmanager
async def sending(cluster: RealCluster, topic: str) -> AsyncIterator[Sender]:
    sender = Sender(cluster, topic)
    running = asyncio.create_task(asyncio.to_thread(sender.run))
    try:
        yield sender
    finally:
        sender.end()
        await running


async def change(m: Member, group: str, topic: str, filter_now: str | Subscription, **values: object) -> None:
    options = {"group": group, "subscriptions": {topic: filter_now}, "persist_consumer_offset_interval_seconds": 0.2}
    await m.consumer.change(group_options(**options, **values))


@behaviour(
    "filters",
    "A changed filter loses and repeats no message that both the old and the new filter match",
    java="unsubscribe and subscribe: cached messages pass by either filter",
    rmqd="brokers know the new filter before the first pull with it; pulls in flight are sent again",
    checked="40 changes while a producer sends",
)
@pytest.mark.parametrize(
    "filters",
    [
        pytest.param(("a || c", "a || b"), id="tags"),
        pytest.param((SQL_A_OR_C, "a || b"), id="sql_and_tags"),
        pytest.param((SQL_A_OR_C, SQL_A_OR_B), id="sql"),
    ],
)
async def test_filters_that_flip_lose_nothing_that_both_match(
    rocketmq: RealCluster, topic: str, group: str, filters: tuple[str | Subscription, str | Subscription]
) -> None:
    """Exactly once each; and what is sent after a change, and only the new filter matches, comes too."""
    seen, marks = Seen(), []
    async with (
        member(
            rocketmq.nameserver, seen, group=group, subscriptions={topic: filters[1]},
            persist_consumer_offset_interval_seconds=0.2, consume_from_where="first_offset",
        ) as m,
        sending(rocketmq, topic) as sender,
    ):  # fmt: skip
        await eventually(lambda: len(seen.attempts) > 50, "it consumes")
        with Producer(rocketmq.broker.address, topic) as marker:
            for number, filter_now in zip(range(40), itertools.cycle(filters), strict=False):
                await change(m, group, topic, filter_now)
                tag = TAGS[filter_now if isinstance(filter_now, str) else filter_now.expression]
                for queue in range(8):
                    marks.append(f"mark{number}.{queue}")
                    marker.send(key=marks[-1], tags=tag, queue=queue)
                await eventually(lambda: set(marks[-8:]) <= set(seen.keys), f"what is sent after change {number}")
        sender.end()
        await eventually(lambda: sender.wanted <= set(seen.keys), "all that every filter matches")
        await eventually(lambda: offsets.lag(rocketmq, group, topic) == 0, "all is committed")
    counts = Counter(key for key in seen.keys if key in sender.wanted or key in set(marks))
    assert counts.keys() == sender.wanted | set(marks)
    assert set(counts.values()) == {1}
    assert sender.sent > 100
