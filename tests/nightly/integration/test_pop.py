"""A group in POP mode on a real RocketMQ: shared by members, switched by mqadmin while it works."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from rmqd import Batch
from tests.consumer.members import Member, member
from tests.rocketmq import RealCluster, offsets, release
from tests.rocketmq.producer import Producer
from tests.waiting import eventually

pytestmark = [pytest.mark.rocketmq, pytest.mark.skipif(release.is_4(), reason="RocketMQ 4.9 has no POP")]

INVISIBLE_SECONDS = 5.0  # the minimum of the configuration


def popped(one: Member) -> bool:
    """Whether the member pops the topic."""
    return one.queue(-1) is not None


async def test_two_members_share_a_popped_topic_and_finish_it(rocketmq: RealCluster, topic: str, group: str) -> None:
    rocketmq.set_consume_mode(topic, group, "POP")
    calls: Counter[str] = Counter()
    slow_calls = 0

    async def handle(batch: Batch) -> None:
        nonlocal slow_calls
        for message in batch:
            assert message.keys is not None
            calls[message.keys] += 1
            if message.keys == "slow":
                slow_calls += 1
                await asyncio.sleep(2 * INVISIBLE_SECONDS)
            elif message.keys == "fails" and not message.reconsume_times:
                raise ValueError("the first time")
            elif message.keys == "fails":
                assert message.topic == topic

    options: dict[str, Any] = {
        "group": group,
        "subscriptions": [topic],
        "pop_invisible_time_seconds": INVISIBLE_SECONDS,
    }
    async with (
        member(rocketmq.nameserver, handle, consume_mode="pop", **options) as one,
        member(rocketmq.nameserver, handle, consume_mode="pop", **options) as two,
    ):
        await eventually(lambda: popped(one) and popped(two), "both members pop")
        # a new group starts at the end, so it would skip earlier messages
        await eventually(lambda: len(offsets.committed(rocketmq, group, topic)) == 8, "the group has its offsets")
        with Producer(rocketmq.broker.address, topic, 8) as producer:
            for number in range(300):
                producer.send(key=f"{number}")
                await asyncio.sleep(0)  # lets both members pop between two sends
            producer.send(key="slow")
            producer.send(key="fails")
        await eventually(lambda: len(calls) == 302, "all are handled", 60)
        await eventually(lambda: calls["fails"] == 2, "the failed one came again, at level 0 after 10 s", 60)
        await eventually(
            lambda: one.topic().handled["acked"] + two.topic().handled["acked"] == 301, "slow one done", 30
        )
        assert one.topic().received
        assert two.topic().received
        await asyncio.sleep(INVISIBLE_SECONDS)
        assert {key: count for key, count in calls.items() if count > 1} == {"fails": 2}
        assert slow_calls == 1


async def test_a_group_that_switches_between_pop_and_pull_under_load_loses_nothing(
    rocketmq: RealCluster, topic: str, group: str
) -> None:
    cluster_name = "DefaultCluster"
    calls: Counter[str] = Counter()
    sent: list[str] = []

    async def handle(batch: Batch) -> None:
        for message in batch:
            assert message.topic == topic
            assert message.keys is not None
            calls[message.keys] += 1
        await asyncio.sleep(0.01)

    async def produce() -> None:
        with Producer(rocketmq.broker.address, topic, 8) as producer:
            while True:
                key = f"{len(sent)}"
                await asyncio.to_thread(producer.send, key=key)
                sent.append(key)
                await asyncio.sleep(0.01)

    async def switch(mode: str) -> None:
        arguments = ("-t", topic, "-g", group, "-m", mode, "-q", "0", "-c", cluster_name)
        await asyncio.to_thread(rocketmq.admin, "setConsumeMode", *arguments)
        for one in members:
            one.consumer.on_consumer_ids_changed()

    options: dict[str, Any] = {
        "group": group,
        "subscriptions": [topic],
        "pop_invisible_time_seconds": INVISIBLE_SECONDS,
    }
    async with (
        member(
            rocketmq.nameserver, handle, consume_mode="pop", concurrency=4, **options, consume_from_where="first_offset"
        ) as one,
        member(
            rocketmq.nameserver, handle, consume_mode="pop", concurrency=4, **options, consume_from_where="first_offset"
        ) as two,
    ):
        members = [one, two]
        producing = asyncio.create_task(produce())
        for mode in ("POP", "PULL", "POP"):
            await switch(mode)
            await eventually(lambda: {popped(each) for each in members} == {mode == "POP"}, f"all {mode}", 60)  # noqa: B023 awaited in the loop
            already = len(sent)
            await eventually(lambda: len(sent) > already + 200, "it goes on", 60)  # noqa: B023 awaited in the loop
        await one.die()  # the other member receives its popped messages
        producing.cancel()
        await asyncio.wait((producing,))
        await eventually(lambda: calls.keys() >= set(sent), "nothing is lost", 120)
    assert len(sent) > 600
