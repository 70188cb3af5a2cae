"""Topics as views of a session, for SQL: Spark's catalogs keep no options for sources in Python."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_views(spark: SparkSession, nameserver: str, topics: Iterable[str], **options: object) -> None:
    """Make a temporary view of each topic, by its name, or replace it.

    `options` are those of `load()`, for all of them. Raises what `load()` raises for wrong ones. Nothing is read before
    a view is queried; a topic that does not exist is an error then.
    """
    for topic in topics:
        reader = spark.read.format("rocketmq").option("nameserver", nameserver).option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, value)  # type: ignore[arg-type]
        reader.load().createOrReplaceTempView(f"`{topic}`")
