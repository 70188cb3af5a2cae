"""Options of the source in a group's configuration: which there are, and what is said of the others."""

from __future__ import annotations

from rmqd.spark.source.source_columns import PERMISSIVE_COLUMNS
from tests.spark.needed import need
from tests.spark.test_group_options import (
    PIPELINE,
    given,
)


def test_they_are_those_of_load() -> None:
    """Written as YAML writes them."""
    found = given(PIPELINE)(
        minPartitions=16, MAXBYTESPERTRIGGER="5000", checkCrc=False, unavailableToleranceMs=5000, pullParallelism=4
    )
    assert (found.min_partitions, found.max_bytes, found.checks_crc, found.tolerance_seconds) == (16, 5000, False, 5.0)
    assert (found.pull.max_in_flight, found.pull.patience_seconds) == (4, 5.0)


def test_a_pipelines_columns_have_what_its_rows_are_counted_by() -> None:
    """Whatever it asks for."""
    assert given(PIPELINE)(columns=["body", "keys"]).columns == ("topic", "body", "keys")
    permissive = given(PIPELINE, is_permissive=True, columns=PERMISSIVE_COLUMNS)
    assert permissive(columns="topic,body").columns == ("decode_error", "topic", "body")
    assert permissive().columns == PERMISSIVE_COLUMNS


def test_the_rows_of_a_pipeline_have_its_columns() -> None:
    """And one more, for its driver."""
    need("pyspark", "pyarrow")
    from rmqd.spark.pipelines.pipeline_query import pipeline_source
    from tests.spark.group_queries import order_of

    order = order_of("ns:1", spark={"options": {"columns": ["body"]}}, **PIPELINE)
    assert pipeline_source(order, None, "pause")(options={}).schema() == "topic string, body binary, rmqd_lost bigint"
