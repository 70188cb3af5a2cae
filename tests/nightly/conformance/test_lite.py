"""A lite topic of RocketMQ 5.5 (RIP-83) with a message that fails."""

from __future__ import annotations

from typing import Any

from rmqd import Batch
from tests.conformance import behaviour
from tests.conformance.test_lite import lite, store
from tests.consumer.members import member
from tests.integration.consuming import dead_letters
from tests.rocketmq import RealCluster
from tests.rocketmq.fixtures import fresh_name
from tests.seen import Seen
from tests.waiting import eventually


@behaviour(
    "lite",
    "A lite topic keeps its order: a failed message is redelivered before later messages",
    java="the broker delivers no further messages of a lite topic that has unacknowledged messages",
    rmqd=(
        "one batch of a lite topic at a time; messages behind a failed message wait for its delay, and "
        "their attempts do not count"
    ),
    checked="the redelivered messages: their order, and the reconsume times of each attempt",
    since="5.5",
    long=True,
)
async def test_a_lite_topic_keeps_its_order(rocketmq_of_kinds: RealCluster, group: str) -> None:
    """One of two lite topics fails at its third message until it is dead-lettered. The other continues."""
    cluster, seen = rocketmq_of_kinds, Seen()
    parent = fresh_name(group, "lite")
    cluster.create_lite(parent, group)
    store(cluster, parent, *(f"{name}.{number}" for number in range(5) for name in ("bad", "good")))

    async def handle(batch: Batch) -> None:
        seen.take(batch)
        if batch[0].keys == "bad.2":
            raise ValueError("as asked")

    options: dict[str, Any] = {"consume_mode": "pop", "consume_from_where": "first_offset", "max_reconsume_times": 1}
    async with member(cluster.nameserver, handle, group=group, subscriptions=lite(parent, "bad", "good"), **options):
        await eventually(lambda: len(seen.attempts) == 11, "all are handled, one twice", 40)
    of = {name: [a for a in seen.attempts if a.key.startswith(name)] for name in ("bad", "good")}
    assert [attempt.key for attempt in of["good"]] == [f"good.{number}" for number in range(5)]
    assert [attempt.key for attempt in of["bad"]] == ["bad.0", "bad.1", "bad.2", "bad.2", "bad.3", "bad.4"]
    assert [attempt.reconsume_times for attempt in of["bad"]] == [0, 0, 0, 1, 0, 0]
    (dead,) = await dead_letters(cluster, group, 1)
    assert (dead.key, dead.properties["RMQD_LITE_TOPIC"]) == ("bad.2", "bad")
