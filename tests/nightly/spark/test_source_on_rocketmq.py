"""The source's requests to a real broker, without a session: ends, times, sizes, filters, offsets, losses."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any

import pytest

from rmqd.client.client_options import ClientOptions
from rmqd.client.instance import ClientInstance
from rmqd.client.sending.outgoing_message import OutgoingMessage, select_by_id
from rmqd.errors import DataLossError
from tests.rocketmq import offsets
from tests.rocketmq.cluster import RealCluster
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark.sql.types import StructType  # noqa: E402

from rmqd.spark.source.source_format import RocketMQSource  # noqa: E402
from tests.spark.micro_batches import Checkpoint, Query  # noqa: E402


def send(cluster: RealCluster, topic: str, bodies: list[str], tag: str = "") -> str:
    """Store messages in queue 0; return the broker's name."""

    async def sending() -> str:
        client = ClientInstance(ClientOptions(nameservers=(cluster.nameserver,)))
        try:
            for body in bodies:
                message = OutgoingMessage(topic, body.encode(), tags=tag)
                stored = await client.producer.send(message, selector=select_by_id(0, ""))
            return stored.queue.broker_name
        finally:
            await client.close()

    return asyncio.run(sending())


def read(cluster: RealCluster, topic: str, **options: str) -> list[str]:
    """Return the bodies."""
    reader = RocketMQSource({"nameserver": cluster.nameserver, "subscribe": topic, **options}).reader(StructType())
    batches: list[Any] = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [body.decode() for batch in batches for body in batch.column("body").to_pylist()]


def test_bounds_filters_and_losses(rocketmq: RealCluster, topic: str) -> None:
    """The read needs more pulls than may be in flight, and meets the broker's responses at a queue's ends."""
    early = [f"{number}" for number in range(700)]
    broker = send(rocketmq, topic, early, tag="early")
    time.sleep(0.01)  # a store time has milliseconds
    between = str(int(time.time() * 1000))
    time.sleep(0.01)
    send(rocketmq, topic, ["late"], tag="late")
    assert read(rocketmq, topic) == [*early, "late"]
    assert read(rocketmq, topic, startingTimestamp=between, startingOffsetsByTimestampStrategy="latest") == ["late"]
    assert read(rocketmq, topic, endingTimestamp=between) == early
    assert read(rocketmq, topic, tags="late") == ["late"]
    assert read(rocketmq, topic, minPartitions="9", tags="early || late") == [*early, "late"]
    beyond = json.dumps({topic: {broker: {"0": 710}}})
    with pytest.raises(DataLossError, match="offsets 701 to 709 are missing: the broker has 0 to 700"):
        read(rocketmq, topic, endingOffsets=beyond)
    assert len(read(rocketmq, topic, endingOffsets=beyond, failOnDataLoss="false")) == 701


def test_a_stream_with_a_byte_limit_leaves_no_lag(rocketmq: RealCluster, topic: str, group: str) -> None:
    """Sizes come from the broker's index. mqadmin finds a group that did not exist before."""
    send(rocketmq, topic, [f"{number}".ljust(4000, ".") for number in range(40)])
    options = {
        "nameserver": rocketmq.nameserver, "subscribe": topic, "groupId": group, "maxBytesPerTrigger": "44000",
    }  # fmt: skip
    batches = Query(Checkpoint(), options, available_now=True).run_until_idle()
    assert [len(batch) for batch in batches] == [10, 10, 10, 10]
    assert offsets.lag(rocketmq, group, topic) == 0
