"""The Parquet sink in a real session. test_parquet_sink kills its driver at every step."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.pipelines.parquet_sink import ParquetSink, default_staging_folder  # noqa: E402
from rmqd.spark.pipelines.pipeline_counts import MicroBatch  # noqa: E402
from rmqd.spark.session.hadoop_folder import HadoopFolder  # noqa: E402

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

QUERY = "3f2f6c3c-93f1-4b0a-8a51-0a6a3f4f6a51"
EACH = 6


def read(folder: Path) -> list[int]:
    """The ids that a reader without knowledge of rmqd finds."""
    import pyarrow.dataset  # type: ignore[import-untyped]  # imports pandas, which would delay test collection

    table = pyarrow.dataset.dataset(folder, format="parquet", partitioning="hive").to_table()
    return sorted(table["id"].to_pylist())


def rows(spark: SparkSession, batch: int) -> DataFrame:
    """The rows of a batch, of two topics."""
    frame = spark.range(batch * EACH, (batch + 1) * EACH, 1, 1)
    return frame.selectExpr("id", f"concat('topic%', int(id % {EACH} >= {EACH // 2})) AS topic")


def sink(spark: SparkSession, folder: Path) -> ParquetSink:
    """The sink of a new driver."""
    where = HadoopFolder(spark, str(folder))
    made = ParquetSink(where, default_staging_folder(where), "archive", ("topic",))
    made.prepare(rows(spark, 0).schema)
    return made


def test_a_written_batch_is_not_written_again(spark: SparkSession, tmp_path: Path) -> None:
    """The first attempt's rows count, even if a second attempt differs. Its plan runs to update its state."""
    folder = tmp_path / "archive"
    batch = MicroBatch(QUERY, 0, b"plan")
    assert not sink(spark, folder).has_batch(batch)
    assert sink(spark, folder).write(rows(spark, 0), batch) == EACH
    assert sink(spark, folder).has_batch(batch)
    assert not sink(spark, folder).has_batch(MicroBatch(QUERY, 0, b"another plan"))
    files = sorted(folder.rglob("*.parquet"))

    with pytest.raises(Exception, match="it ran"):
        sink(spark, folder).write(rows(spark, 7).selectExpr("raise_error('it ran') AS id", "topic"), batch)
    assert sink(spark, folder).write(rows(spark, 7), batch) == EACH
    assert sorted(folder.rglob("*.parquet")) == files
    assert read(folder) == list(range(EACH))
