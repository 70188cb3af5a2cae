"""Topics as temporary views for SQL: Spark's catalog cannot store a table of a Python source with its options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_views(spark: SparkSession, nameserver: str, topics: Iterable[str], **options: object) -> None:
    """Create or replace a temporary view of each topic, named like the topic.

    Each view has the `options` of `load()`. Raises the errors of `load()` if an option is invalid. Nothing is read
    before a view is queried, so only a query reports a missing topic.
    """
    for topic in topics:
        reader = spark.read.format("rocketmq").option("nameserver", nameserver).option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, value)  # type: ignore[arg-type]
        reader.load().createOrReplaceTempView(f"`{topic}`")
