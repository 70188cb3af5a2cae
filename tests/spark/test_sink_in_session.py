"""The sink in a real Spark session: what only a JVM can show."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqd.testing.rocketmq import RocketMQ
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark import TaskContext  # noqa: E402

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession


@pytest.fixture
def embedded() -> Iterator[RocketMQ]:
    """The kit's, in memory."""
    with RocketMQ() as rocketmq:
        yield rocketmq


def test_a_query_is_written_to_a_topic(spark: SparkSession, embedded: RocketMQ) -> None:
    """Batch: each row once, from several partitions, with its columns."""
    embedded.create_topic("orders", 4)
    rows = spark.range(0, 1000, 1, 4).selectExpr(
        "cast(id as string) as body", "concat('t', id % 2) as tags", "map('n', string(id)) as properties"
    )
    rows.write.format("rocketmq").options(nameserver=embedded.nameserver, topic="orders").mode("append").save()
    stored = embedded.messages("orders")
    assert sorted(int(message.body) for message in stored) == list(range(1000))
    assert all(message.tags == f"t{int(message.body) % 2}" for message in stored)
    assert all(message.properties["n"] == message.body.decode() for message in stored)
    assert {message.properties["RMQD_PART"] for message in stored} == {"0", "1", "2", "3"}


def test_what_is_wrong_with_a_write_is_told_at_once(spark: SparkSession) -> None:
    """Before a task starts."""
    with pytest.raises(Exception, match="column tag: the sink has no such column") as raised:
        spark.range(1).selectExpr("'a' as tag").write.format("rocketmq").mode("append").save()
    assert "nameserver: is missing" in str(raised.value)


def test_a_stream_copies_a_topic(spark: SparkSession, embedded: RocketMQ, tmp_path: Path) -> None:
    """Source to sink, in batches that are marked."""
    embedded.create_topic("orders", 2)
    embedded.create_topic("copies", 2)
    for number in range(20):
        embedded.send("orders", str(number), keys=f"k{number}", tags="t", queue_id=number % 2)
    source = spark.readStream.format("rocketmq").options(
        nameserver=embedded.nameserver, subscribe="orders", startingOffsets="earliest", maxOffsetsPerTrigger=10
    )
    query = (
        source.load()
        .writeStream.format("rocketmq")
        .options(nameserver=embedded.nameserver, topic="copies", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(60)
    copies = embedded.messages("copies")
    assert sorted(int(message.body) for message in copies) == list(range(20))
    assert {(message.keys, message.tags) for message in copies if message.body == b"7"} == {("k7", "t")}
    assert {message.properties["RMQD_BATCH"] for message in copies} == {"0", "1"}
    assert len({message.properties["RMQD_QUERY"] for message in copies}) == 1


def spoils_the_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Has the task's last row without a body, unless the task is tried again."""
    context = TaskContext.get()
    for batch in batches:
        rows = batch.to_pylist()
        if context is not None and context.attemptNumber() == 0:
            rows[-1] = {"body": None}
        yield batch.from_pylist(rows, schema=batch.schema)


def test_a_task_that_is_tried_again_is_told_by_its_marks(spark: SparkSession, embedded: RocketMQ) -> None:
    """Some of its messages are there twice, and a reader drops the second ones as docs/spark.md says."""
    embedded.create_topic("orders", 2)
    rows = spark.range(0, 400, 1, 2).selectExpr("string(id) AS body").mapInArrow(spoils_the_last, "body string")
    options = {"nameserver": embedded.nameserver}
    rows.write.format("rocketmq").options(**options, topic="orders", sendParallelism=1).mode("append").save()
    assert len(embedded.messages("orders")) > 400
    read = spark.read.format("rocketmq").options(**options, subscribe="orders").load()
    marks = [f"properties['RMQD_{name}'] AS {name.lower()}" for name in ("QUERY", "BATCH", "PART", "SEQ")]
    once = read.selectExpr("*", *marks).dropDuplicates(["query", "batch", "part", "seq"])
    assert sorted(int(row.body) for row in once.collect()) == list(range(400))


def test_a_row_that_cannot_be_sent_fails_the_write(spark: SparkSession, embedded: RocketMQ) -> None:
    """The error names it, and what was stored before stays."""
    embedded.create_topic("orders", 2)
    rows = spark.range(0, 10, 1, 1).selectExpr("if(id = 7, null, string(id)) AS body")
    with pytest.raises(Exception, match="row 7 of partition 0: its body is null"):
        rows.write.format("rocketmq").options(nameserver=embedded.nameserver, topic="orders").mode("append").save()
    assert {message.body for message in embedded.messages("orders")} <= {str(number).encode() for number in range(7)}
