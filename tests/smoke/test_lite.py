"""Lite topics of RocketMQ 5.5 (RIP-83), popped by rmqd and by the code of the official client."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from rmqd import Batch
from tests.conformance import behaviour
from tests.conformance.attempts import Attempt, Attempts, differing
from tests.conformance.test_lite import acknowledged, lite, store
from tests.consumer.members import member
from tests.rocketmq import RealCluster
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.peers import start_program
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = pytest.mark.rocketmq

# Java shows the message's queue of the parent topic; the pop handle differs by group
OF_THE_POP = ("queue_id", "POP_CK", "1ST_POP_TIME")


class Recording(Seen):
    """Records every attempt with all fields that a conformance row compares."""

    def __init__(self) -> None:
        super().__init__()
        self.recorded = Attempts()

    async def __call__(self, batch: Batch) -> None:
        self.recorded += [Attempt.of(0, message) for message in batch]
        self.take(batch)


@behaviour(
    "lite",
    "A group gets the messages of the lite topics in its configuration, and no others",
    java="the gRPC LitePushConsumer; a proxy subscribes and pops for it (200071, 200070)",
    rmqd="lite_topics: subscribes and pops at the brokers with the same requests",
    checked=(
        "compared with the official client's code for these requests: all fields of each message; the broker's offsets"
    ),
    since="5.5",
)
async def test_a_group_gets_only_the_messages_of_its_lite_topics(
    rocketmq_of_kinds: RealCluster, group: str, tmp_path: Path
) -> None:
    """It does not get messages of other lite topics, or messages without a lite topic."""
    cluster, seen = rocketmq_of_kinds, Recording()
    parent, java_group = fresh_name(group, "lite"), f"{group}_java"
    cluster.create_lite(parent, group, java_group)
    keys = [f"{name}.{number}" for name in ("a", "b", "c") for number in range(5)]
    store(cluster, parent, *keys, "none")
    options: dict[str, object] = {
        "namesrv": cluster.nameserver,
        "broker": cluster.broker.address,
        "broker-name": "broker-a",
        "topic": parent,
        "group": java_group,
        "lite-topics": "a,b",
        "messages": 10,
        "attempts": tmp_path / "attempts",
    }
    with await asyncio.to_thread(start_program, "LitePopper", tmp_path, options) as java:
        assert await asyncio.to_thread(java.wait) == 0
    async with member(
        cluster.nameserver,
        seen,
        group=group,
        subscriptions=lite(parent, "a", "b", "later"),
        consume_mode="pop",
        consume_from_where="first_offset",
    ):
        await eventually(lambda: len(seen.attempts) == 10, "the messages of two lite topics are handled")
        store(cluster, parent, "later.0", "c.9", "later.1")
        await eventually(lambda: len(seen.attempts) == 12, "the messages of a new lite topic are handled")
        for name, committed in ("a", 5), ("b", 5), ("later", 2):
            await acknowledged(cluster, group, parent, name, committed)

    found = Attempts.read(tmp_path / "attempts")
    expected = {key: attempt.without(*OF_THE_POP) for key, attempt in found.by_keys().items()}
    shown = {key: one.without(*OF_THE_POP) for key, one in seen.recorded.by_keys().items() if "later" not in str(key)}
    assert differing(expected, shown) == {}
    assert [key for key in seen.recorded.keys if str(key).startswith("a.")] == keys[:5]
    assert {attempt.queue_offset for attempt in seen.recorded} == set(range(5))
