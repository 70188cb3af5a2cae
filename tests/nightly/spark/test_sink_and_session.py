"""The sink in a real Spark session: what only a JVM can show."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from rmqd.testing.rocketmq import RocketMQ
from tests.spark.needed import need

need("pyspark", "pyarrow")


if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_batch_is_written_to_a_topic(spark: SparkSession, embedded: RocketMQ) -> None:
    """Each row is written once, from several partitions, with its columns."""
    embedded.create_topic("orders", 4)
    rows = spark.range(0, 100, 1, 2).selectExpr(
        "cast(id as string) as body", "concat('t', id % 2) as tags", "map('n', string(id)) as properties"
    )
    rows.write.format("rocketmq").options(nameserver=embedded.nameserver, topic="orders").mode("append").save()
    stored = embedded.messages("orders")
    assert sorted(int(message.body) for message in stored) == list(range(100))
    assert all(message.tags == f"t{int(message.body) % 2}" for message in stored)
    assert all(message.properties["n"] == message.body.decode() for message in stored)
    assert {message.properties["RMQD_PART"] for message in stored} == {"0", "1"}


def test_an_invalid_write_is_refused_at_once(spark: SparkSession) -> None:
    """The error is raised before a task starts."""
    with pytest.raises(Exception, match="column tag: the sink has no such column") as raised:
        spark.range(1).selectExpr("'a' as tag").write.format("rocketmq").mode("append").save()
    assert "nameserver: missing" in str(raised.value)
