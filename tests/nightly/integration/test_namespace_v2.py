"""namespaceV2 next to Java: members that send it share a group, and no topic or group changes its name."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.conformance import behaviour
from tests.consumer.members import member
from tests.rocketmq import RealCluster, ledger, offsets
from tests.rocketmq.peers import PeerOptions, start_consumer
from tests.rocketmq.producer import Producer
from tests.seen import Seen
from tests.waiting import eventually

pytestmark = [pytest.mark.rocketmq, pytest.mark.slow]

MESSAGES = 80


@behaviour(
    "rebalance",
    "Java and rmqd members with namespaceV2 share a group, and no name is changed",
    java="nsd=true and ns=NAME in every request",
    rmqd="the same, with client.namespace_v2",
    checked="a Java consumer and rmqd in one group: the queues and messages of each, and the group's offsets",
    since="5.0",
)
async def test_members_with_namespace_v2_share_a_group(
    rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    seen, theirs = Seen(), tmp_path / "java"

    def finished() -> list[str]:
        return [entry.key for entry in ledger.read(theirs) if entry.event == ledger.FINISH]

    def send() -> None:
        with Producer(rocketmq.broker.address, topic) as producer:
            for number in range(MESSAGES):
                producer.send(key=f"{number}")

    options: dict[str, Any] = {"group": group, "subscriptions": [topic], "consume_from_where": "first_offset"}
    async with member(rocketmq.nameserver, seen, namespace_v2="shop", **options) as m:
        await eventually(lambda: len(m.owned()) == 8, "it has all queues", 60)
        peer = PeerOptions(rocketmq.nameserver, topic, theirs)
        with start_consumer(peer, group, namespace_v2="shop") as java:
            await eventually(lambda: len(m.owned()) == 4, "each has half of the queues", 60)
            await asyncio.to_thread(send)
            await eventually(lambda: len(seen.keys) + len(finished()) == MESSAGES, "all are handled")
            await asyncio.to_thread(java.stop)
    assert len(seen.keys) == len(finished()) == MESSAGES // 2
    assert sorted(map(int, seen.keys + finished())) == list(range(MESSAGES))
    assert offsets.lag(rocketmq, group, topic) == 0
