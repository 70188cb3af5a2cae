"""The sink `delta` with Delta Lake itself: each batch is written once, appended or by key."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from rmqd.config.model.spark_model import SinkConfig
from rmqd.errors import ConfigError, RmqdError
from rmqd.spark.pipelines.pipeline_counts import MicroBatch
from tests.nightly.spark.delta_lake import need_delta_lake
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")
need_delta_lake()

from rmqd.spark.pipelines.table_sinks import DeltaSink  # noqa: E402
from tests.spark.group_queries import SECONDS, order_of, start  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

ROWS = "id bigint, amount int, place bigint"
QUERY = "5f3c9f0e-0000-4000-8000-000000000001"


def rows(spark: SparkSession, *values: tuple[int | None, int | None, int | None]) -> DataFrame:
    return spark.createDataFrame(list(values), ROWS)


def batch(number: int, plan: bytes = b"") -> MicroBatch:
    return MicroBatch(QUERY, number, plan or b"plan %d" % number)


def table(spark: SparkSession, path: Path, **keys: Any) -> DeltaSink:
    """A driver's sink, ready for rows."""
    options = keys.pop("options", {})
    sink = DeltaSink(spark, SinkConfig.model_validate({"format": "delta", "path": str(path), **keys}), options)
    sink.prepare(rows(spark).schema)
    return sink


def content(spark: SparkSession, path: Path) -> list[tuple[Any, ...]]:
    return sorted(map(tuple, spark.read.format("delta").load(str(path)).collect()), key=str)


def commits(spark: SparkSession, path: Path) -> int:
    return spark.sql(f"DESCRIBE HISTORY delta.`{path}`").count()


@pytest.mark.parametrize("keys", [{}, {"keys": ["id"], "order_by": ["place"]}], ids=["added", "by key"])
def test_a_repeated_batch_is_skipped(spark: SparkSession, tmp_path: Path, keys: dict[str, Any]) -> None:
    """Both the same driver and its successor skip it. A batch with other messages, or an older one, is an error."""
    path = tmp_path / "prices"
    first = table(spark, path, **keys)
    first.write(rows(spark, (1, 10, 1)), batch(0))
    first.write(rows(spark, (2, 20, 2)), batch(1))
    before = commits(spark, path)
    for sink in (first, table(spark, path, **keys)):
        sink.write(rows(spark, (2, 20, 2)), batch(1))
        assert content(spark, path) == [(1, 10, 1), (2, 20, 2)]
    assert commits(spark, path) == before
    for late in (batch(1, b"other"), batch(0)):
        with pytest.raises(RmqdError, match=r"already has batch 1 of this query.*was the checkpoint reset"):
            table(spark, path, **keys).write(rows(spark, (3, 30, 3)), late)
    table(spark, path, **keys).write(rows(spark, (3, 30, 3)), batch(2))
    assert content(spark, path) == [(1, 10, 1), (2, 20, 2), (3, 30, 3)]


def test_rows_replace_rows_with_the_same_key(spark: SparkSession, tmp_path: Path) -> None:
    """The last one by `order_by` counts, in a batch and compared with the table. Null is before all values."""
    path = tmp_path / "prices"
    sink = table(spark, path, keys=["id"], order_by=["place"])
    sink.write(rows(spark, (1, 10, 5), (2, 20, None), (1, 11, 6), (1, 9, 4), (None, 1, 1)), batch(0))
    assert content(spark, path) == [(1, 11, 6), (2, 20, None), (None, 1, 1)]
    sink.write(rows(spark, (1, 12, 5), (2, None, 7), (3, 30, 1), (None, 2, 1)), batch(1))
    assert content(spark, path) == [(1, 11, 6), (2, None, 7), (3, 30, 1), (None, 2, 1)]


def test_several_rows_with_the_same_key_need_order_by(spark: SparkSession, tmp_path: Path) -> None:
    """None of the batch's rows is written. With one row for each key, the later batch counts."""
    path = tmp_path / "prices"
    sink = table(spark, path, keys=["id"])
    with pytest.raises(RmqdError, match=r"batch 0 has several rows with the same key \(id\).*set sink.order_by"):
        sink.write(rows(spark, (1, 10, 5), (1, 11, 6)), batch(0))
    assert content(spark, path) == []
    sink.write(rows(spark, (1, 10, 5)), batch(0))
    sink.write(rows(spark, (1, 7, 4)), batch(1))
    assert content(spark, path) == [(1, 7, 4)]


def test_missing_columns_are_reported_at_the_start(spark: SparkSession, tmp_path: Path) -> None:
    """With `mergeSchema` the table adds them."""
    path = tmp_path / "prices"
    with pytest.raises(
        ConfigError, match=r"sink.keys: the pipeline's rows have no column key; expected one of id, amount"
    ):
        table(spark, path, keys=["key"])
    spark.createDataFrame([(1,)], "id bigint").write.format("delta").save(str(path))
    with pytest.raises(ConfigError, match="has no column amount, place; run ALTER TABLE delta"):
        table(spark, path)
    for number, keys in enumerate(({}, {"keys": ["id"]})):
        sink = table(spark, path, options={"mergeSchema": "true"}, **keys)
        sink.write(rows(spark, (2 + number, 20, 2)), batch(number))
    assert content(spark, path) == [(1, None, None), (2, 20, 2), (3, 20, 2)]


COUNTED = {"plugin": "tests.nightly.spark.test_delta_table:by_amount"}


def by_amount(frame: DataFrame, spark: SparkSession) -> DataFrame:
    """The number of messages of each amount."""
    return frame.selectExpr("CAST(CAST(body AS STRING) AS INT) AS amount").groupBy("amount").count()


def test_an_aggregate_stays_correct_by_key_if_a_commit_is_lost(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Spark repeats the batch. Its plan must run although the table has the batch, so that its state continues."""
    for topic in ("orders", "refunds"):
        broker.create_topic(topic, 1)
    broker.send("orders", "5", "6", "5")
    sink = {"format": "delta", "path": str(tmp_path / "counts"), "keys": ["amount"], "output_mode": "update"}
    order = order_of(broker.nameserver, pipeline=COUNTED, sink=sink)
    assert start(spark, order, tmp_path).awaitTermination(SECONDS)
    assert content(spark, tmp_path / "counts") == [(5, 2), (6, 1)]
    for name in ("0", ".0.crc"):
        (tmp_path / "checkpoint" / "commits" / name).unlink(missing_ok=True)
    broker.send("orders", "5")
    for _ in range(2):
        assert start(spark, order, tmp_path).awaitTermination(SECONDS)
    assert content(spark, tmp_path / "counts") == [(5, 3), (6, 1)]
