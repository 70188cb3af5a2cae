"""The source's options in a group's configuration, and the columns of its pipeline."""

from __future__ import annotations

from rmqd.spark.source.source_columns import PERMISSIVE_COLUMNS
from tests.spark.needed import need
from tests.spark.test_group_options import (
    PIPELINE,
    given,
)


def test_the_options_are_those_of_load() -> None:
    """Their values may have the types of YAML."""
    found = given(PIPELINE)(
        minPartitions=16, MAXBYTESPERTRIGGER="5000", checkCrc=False, unavailableToleranceMs=5000, pullParallelism=4
    )
    assert (found.min_partitions, found.max_bytes, found.checks_crc, found.tolerance_seconds) == (16, 5000, False, 5.0)
    assert (found.pull.max_in_flight, found.pull.patience_seconds) == (4, 5.0)


def test_a_pipeline_always_has_the_columns_that_its_counters_need() -> None:
    assert given(PIPELINE)(columns=["body", "keys"]).columns == ("topic", "body", "keys")
    permissive = given(PIPELINE, is_permissive=True, columns=PERMISSIVE_COLUMNS)
    assert permissive(columns="topic,body").columns == ("decode_error", "topic", "body")
    assert permissive().columns == PERMISSIVE_COLUMNS


def test_the_rows_of_a_pipeline_have_its_columns() -> None:
    """The driver needs one more column."""
    need("pyspark", "pyarrow")
    from rmqd.spark.pipelines.pipeline_query import pipeline_source
    from tests.spark.group_queries import order_of

    order = order_of("ns:1", spark={"options": {"columns": ["body"]}}, **PIPELINE)
    assert pipeline_source(order, None, "pause")(options={}).schema() == "topic string, body binary, rmqd_lost bigint"
