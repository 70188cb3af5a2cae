"""The source and the sink in a real session, as in a notebook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rmqd.testing.rocketmq import RocketMQ
from tests.spark.embedded_broker import BROKER, EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.source.source_columns import COLUMN_TYPES  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SECONDS = 120


def run(spark: SparkSession, broker: EmbeddedBroker, folder: Path, **options: str) -> StreamingQuery:
    """Write all available messages to Parquet."""
    reader = spark.readStream.format("rocketmq").option("nameserver", broker.nameserver).option("subscribe", "orders")
    frame = reader.options(**options).load().selectExpr("CAST(body AS STRING) AS body")
    query = (
        frame.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(SECONDS)
    return query


def written(spark: SparkSession, folder: Path) -> list[str]:
    return sorted(row.body for row in spark.read.parquet(str(folder / "out")).collect())


def test_a_topic_is_queried_in_sql(spark: SparkSession, broker: EmbeddedBroker) -> None:
    """Every column has its documented type."""
    broker.create_topic("orders", 2)
    for number in range(20):
        tag = "paid" if number % 2 else "open"
        broker.send("orders", f"{number}", queue_id=number % 2, tags=tag, properties={"amount": str(number)})
    frame = (
        spark.read.format("rocketmq")
        .options(nameserver=broker.nameserver, subscribe="orders", columns=",".join(COLUMN_TYPES))
        .load()
    )
    assert [(name, kind) for name, kind in frame.dtypes] == [(name, kind) for name, (kind, _) in COLUMN_TYPES.items()]
    assert frame.count() == 20
    frame.createOrReplaceTempView("orders")
    rows = spark.sql(
        "SELECT tags, count(*) AS messages, sum(CAST(properties['amount'] AS INT)) AS amount FROM orders "
        "WHERE store_timestamp > '2020-01-01' GROUP BY tags ORDER BY tags"
    )
    assert [tuple(row) for row in rows.collect()] == [("open", 10, 90), ("paid", 10, 100)]
    assert len(frame.where("queue_offset = 3").collect()[0]) == len(COLUMN_TYPES)


def test_load_reports_all_invalid_options(spark: SparkSession) -> None:
    """They are in the first lines of the error, before anything is read."""
    with pytest.raises(Exception, match="nameserver: missing") as raised:
        spark.read.format("rocketmq").options(subscribe="orders", namesrv="localhost:9876", minPartitions="many").load()
    first, *others = str(raised.value).splitlines()
    assert first.endswith("ConfigError: namesrv: there is no such option; did you mean nameserver?")
    assert "minPartitions: 'many' is not valid; expected a number above 0" in others
    assert not any("Traceback" in line for line in others)


def test_a_schema_selects_the_columns(spark: SparkSession, broker: EmbeddedBroker) -> None:
    """The driver reports an invalid schema before a task starts."""
    broker.fill("orders", 1, 2)
    reader = spark.read.format("rocketmq").options(nameserver=broker.nameserver, subscribe="orders")
    rows = reader.schema("body binary, queue_offset bigint").load().collect()
    assert [tuple(row) for row in rows] == [(b"0:0", 0), (b"0:1", 1)]
    with pytest.raises(Exception, match="unknown column bdoy; did you mean body") as raised:
        reader.schema("bdoy binary").load().collect()
    assert "Job aborted" not in str(raised.value)


def test_available_messages_are_written_once(spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path) -> None:
    """The limit applies to each batch. The next run continues from the checkpoint, and leaves no lag."""
    broker.fill("orders", 2, 25)
    query = run(spark, broker, tmp_path, groupId="archive", maxOffsetsPerTrigger="20")
    assert [progress.numInputRows for progress in query.recentProgress] == [20, 20, 10]
    assert json.loads(query.recentProgress[-1].sources[0].endOffset)["q"] == {"orders": {BROKER: {"0": 25, "1": 25}}}
    assert broker.offsets("archive", "orders") == {0: 25, 1: 25}
    broker.create_topic("orders", 3)
    broker.send("orders", "2:0", queue_id=2)
    run(spark, broker, tmp_path, groupId="archive")
    expected = [f"{queue_id}:{number}" for queue_id in range(2) for number in range(25)]
    assert written(spark, tmp_path) == sorted([*expected, "2:0"])
    assert broker.offsets("archive", "orders") == {0: 25, 1: 25, 2: 1}


def test_a_stream_copies_a_topic(spark: SparkSession, embedded: RocketMQ, tmp_path: Path) -> None:
    """The copies name their query and batch."""
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
    assert query.awaitTermination(SECONDS)
    copies = embedded.messages("copies")
    assert sorted(int(message.body) for message in copies) == list(range(20))
    assert {(message.keys, message.tags) for message in copies if message.body == b"7"} == {("k7", "t")}
    assert {message.properties["RMQD_BATCH"] for message in copies} == {"0", "1"}
    assert len({message.properties["RMQD_QUERY"] for message in copies}) == 1
