"""Topics with queue.type=BatchCQ on a real RocketMQ: on Spark, too, each member of a batch is a message."""

from __future__ import annotations

from typing import Any

import pytest

from rmqd import Batch
from rmqd.config.model.root_model import RootConfig
from rmqd.spark.session.group_spec import GroupSpec
from tests.rocketmq import RealCluster, release
from tests.rocketmq.fixtures import fresh_name
from tests.rocketmq.producer import Producer
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark.sql.types import StructType  # noqa: E402

from rmqd.spark.source.source_format import RocketMQSource  # noqa: E402
from tests.spark.handler_batches import GroupQuery  # noqa: E402

pytestmark = [pytest.mark.rocketmq, pytest.mark.skipif(release.is_4(), reason="RocketMQ 4.9 has no such topics")]

BATCHES, SIZE = 8, 5
KEYS = [f"k{number}" for number in range(BATCHES * SIZE)]
HANDLED: list[tuple[str | None, int]] = []


async def handle(batch: Batch) -> None:
    """Acknowledges everything."""
    HANDLED.extend((message.keys, message.queue_offset) for message in batch)


@pytest.fixture
def topic(rocketmq: RealCluster, request: pytest.FixtureRequest) -> str:
    """A topic with one such queue and batches of five messages."""
    topic = fresh_name(request.node.name, "topic")
    rocketmq.create_topic(topic, 1, attributes="+queue.type=BatchCQ")
    with Producer(rocketmq.broker.address, topic, 1) as producer:
        for at in range(0, len(KEYS), SIZE):
            producer.send_batch(KEYS[at : at + SIZE])
    return topic


def test_messages_of_a_batch_are_rows(rocketmq: RealCluster, topic: str) -> None:
    """Each has its own offset."""
    options = {"nameserver": rocketmq.nameserver, "subscribe": topic, "columns": "keys,queue_offset,body"}
    reader = RocketMQSource(options).reader(StructType())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    rows = [row for batch in batches for row in batch.to_pylist()]
    assert [(row["keys"], row["queue_offset"], row["body"]) for row in rows] == [
        (key, offset, b"x") for offset, key in enumerate(KEYS)
    ]


def test_messages_of_a_batch_are_handled_once(rocketmq: RealCluster, topic: str, group: str) -> None:
    """The group has `engine: spark`."""
    HANDLED.clear()
    settings = {
        "engine": "spark", "subscriptions": {topic: "*"}, "consume_from_where": "first_offset",
        "handler": {"plugin": f"{__name__}:handle", "concurrency": 1},
    }  # fmt: skip
    config = RootConfig.model_validate({"nameserver": rocketmq.nameserver, "groups": {group: settings}})
    query = GroupQuery(GroupSpec(group, config))
    query.run_until(lambda: len(HANDLED) >= len(KEYS))
    assert list(HANDLED) == [(key, offset) for offset, key in enumerate(KEYS)]
    assert query.handled() == {"acked": len(KEYS)}
