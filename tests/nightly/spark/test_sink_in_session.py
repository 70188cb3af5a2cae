"""The sink in a real Spark session: what only a JVM can show."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from rmqd.testing.rocketmq import RocketMQ
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark import TaskContext  # noqa: E402

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession


def spoils_the_last(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Remove the body of the task's last row, unless the task is retried."""
    context = TaskContext.get()
    for batch in batches:
        rows = batch.to_pylist()
        if context is not None and context.attemptNumber() == 0:
            rows[-1] = {"body": None}
        yield batch.from_pylist(rows, schema=batch.schema)


def test_rows_of_a_retried_task_are_recognized_by_their_marks(spark: SparkSession, embedded: RocketMQ) -> None:
    """Some of its messages exist twice, and a reader drops the second ones as docs/spark.md says."""
    embedded.create_topic("orders", 2)
    rows = spark.range(0, 400, 1, 2).selectExpr("string(id) AS body").mapInArrow(spoils_the_last, "body string")
    options = {"nameserver": embedded.nameserver}
    rows.write.format("rocketmq").options(**options, topic="orders", sendParallelism=1).mode("append").save()
    assert len(embedded.messages("orders")) > 400
    read = spark.read.format("rocketmq").options(**options, subscribe="orders", includeProperties=True).load()
    marks = [f"properties['RMQD_{name}'] AS {name.lower()}" for name in ("QUERY", "BATCH", "PART", "SEQ")]
    once = read.selectExpr("*", *marks).dropDuplicates(["query", "batch", "part", "seq"])
    assert sorted(int(row.body) for row in once.collect()) == list(range(400))


def test_a_row_that_cannot_be_sent_fails_the_write(spark: SparkSession, embedded: RocketMQ) -> None:
    """The error names the row. The rows that were stored before it stay."""
    embedded.create_topic("orders", 2)
    rows = spark.range(0, 10, 1, 1).selectExpr("if(id = 7, null, string(id)) AS body")
    with pytest.raises(Exception, match="row 7 of partition 0: its body is null"):
        rows.write.format("rocketmq").options(nameserver=embedded.nameserver, topic="orders").mode("append").save()
    assert {message.body for message in embedded.messages("orders")} <= {str(number).encode() for number in range(7)}
