"""Batches are cut as Java cuts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.conformance import behaviour
from tests.conformance.scripted import both
from tests.rocketmq import RealCluster
from tests.rocketmq.producer import Producer


@behaviour(
    "messages",
    ("Batches have up to consume_message_batch_max_size messages, in the queue's order, from one queue each"),
    java="each pull is divided separately, so its last batch may be smaller",
    rmqd="a batch is full whenever enough messages are cached",
    checked="compared with a Java consumer: the batches of ten messages that wait in a queue",
)
async def test_batches_are_cut_as_java_cuts_them(rocketmq: RealCluster, topic: str, group: str, tmp_path: Path) -> None:
    """Ten messages in batches of four."""
    keys = [f"m{number}" for number in range(10)]
    with Producer(rocketmq.broker.address, topic) as producer:
        producer.send_batch(keys, queue=0)

    options: dict[str, Any] = {
        "java": {"batch": 4, "threads": 1},
        "consume_message_batch_max_size": 4,
        "concurrency": 1,
    }
    async with both(rocketmq, group, tmp_path, [topic], **options, consume_from_where="first_offset") as sides:
        await sides.handled(10)
        seen_by_java, seen_by_rmqd = await sides.stop()

    assert seen_by_java.batches() == seen_by_rmqd.batches() == [keys[:4], keys[4:8], keys[8:]]
