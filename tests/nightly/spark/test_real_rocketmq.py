"""Sink and source against a real RocketMQ, in a real session. mqadmin reports the group's lag."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tests.rocketmq import offsets
from tests.rocketmq.cluster import RealCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 2000


def test_a_topic_is_written_and_read(
    spark: SparkSession, rocketmq: RealCluster, topic: str, group: str, tmp_path: Path
) -> None:
    """Each row is there once, in order for each key. A stream's group has no lag after it has read them."""
    options = {"nameserver": rocketmq.nameserver}
    (
        spark.range(0, ROWS, 1, 2)
        .selectExpr("string(id) AS body", "concat('c', id % 5) AS sharding_key", "'t' AS tags", "string(id) AS keys")
        .write.format("rocketmq")
        .options(**options, topic=topic)
        .mode("append")
        .save()
    )
    read = spark.read.format("rocketmq").options(**options, subscribe=topic, tags="t || u", columns="*").load()
    rows = sorted(read.collect(), key=lambda row: (row.broker, row.queue_id, row.queue_offset))
    assert sorted(int(row.body) for row in rows) == list(range(ROWS))
    assert all(row.keys == row.body.decode() for row in rows)
    for part in range(2):
        for key in range(5):
            mine = [row for row in rows if row.sharding_key == f"c{key}" and row.properties["RMQD_PART"] == str(part)]
            assert len({row.queue_id for row in mine}) == 1
            assert [int(row.body) for row in mine] == sorted(int(row.body) for row in mine)

    query = (
        spark.readStream.format("rocketmq")
        .options(**options, subscribe=topic, groupId=group)
        .load()
        .selectExpr("CAST(body AS STRING) AS body")
        .writeStream.format("parquet")
        .options(path=str(tmp_path / "out"), checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    copies = [row.body for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(map(int, copies)) == list(range(ROWS))
    assert offsets.lag(rocketmq, group, topic) == 0
