"""The columns that a pipeline uses, which executors decode."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.pipelines.pinned_schema import store_used_columns, used_columns  # noqa: E402
from rmqd.spark.pipelines.pipeline_query import FORMAT_NAME, pipeline_source  # noqa: E402
from tests.spark.group_queries import SECONDS, archive_order  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_columns_that_a_pipeline_uses_are_found(spark: SparkSession) -> None:
    """All columns are used if a Python function receives the whole row, or nothing selects columns."""
    from pyspark.sql import functions as f

    frame = (
        spark.readStream.format("rocketmq").options(nameserver="127.0.0.1:1", subscribe="orders", columns="*").load()
    )
    every = frozenset(frame.columns)

    def same(batches: Any) -> Any:
        yield from batches

    late = frame.withWatermark("store_timestamp", "1 minute")
    cases = [
        (frame.select("body", "queue_offset"), {"body", "queue_offset"}),
        (frame.where("tags = 'paid'").select(f.length("body")), {"body", "tags"}),
        (frame.observe("seen", f.count_if(f.col("topic") == "orders").alias("n")).select("body"), {"body", "topic"}),
        (late.groupBy(f.window("store_timestamp", "1 minute"), "tags").count(), {"store_timestamp", "tags"}),
        (late.dropDuplicatesWithinWatermark(["msg_id"]).select("body"), {"body", "msg_id", "store_timestamp"}),
        (frame.select("body").mapInArrow(same, "body binary"), {"body"}),
        (frame.select("keys").union(frame.select("msg_id")), {"keys", "msg_id"}),
        (frame.select(f.col("properties")["colour"]), {"properties"}),
    ]
    for number, (made, used) in enumerate(cases):
        assert used_columns(made, "rocketmq") == frozenset(used), number
    for made in (frame, frame.where("queue_id = 1"), frame.union(frame), frame.mapInArrow(same, frame.schema)):
        assert used_columns(made, "rocketmq") in (None, every)


def test_unused_columns_are_not_decoded(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """Their values are null."""
    broker.fill("orders", 1, 3)
    pause_file = str(tmp_path / "pause")
    order = archive_order(broker.nameserver, tmp_path, {"subscriptions": {"orders": "*"}})
    spark.dataSource.register(pipeline_source(order, None, pause_file))
    frame = spark.readStream.format(FORMAT_NAME).load()
    store_used_columns(pause_file, frozenset({"body", "queue_offset"}))
    rows: list[Any] = []
    query = (
        frame.writeStream.trigger(availableNow=True)
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda batch, _: rows.extend(batch.collect()))
        .start()
    )
    assert query.awaitTermination(SECONDS)
    found = [{name: value for name, value in row.asDict().items() if value is not None} for row in rows]
    assert found == [{"body": b"0:%d" % number, "queue_offset": number} for number in range(3)]
