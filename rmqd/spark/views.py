"""Topics as views of a session, for SQL, because Spark's catalogs store no options for Python sources."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_views(spark: SparkSession, nameserver: str, topics: Iterable[str], **options: object) -> None:
    """Create or replace a temporary view of each topic, named like the topic.

    `options` are the options of `load()`, for all views. Raises the errors of `load()` for invalid ones. Nothing is
    read before a view is queried; then a missing topic is an error.
    """
    for topic in topics:
        reader = spark.read.format("rocketmq").option("nameserver", nameserver).option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, value)  # type: ignore[arg-type]
        reader.load().createOrReplaceTempView(f"`{topic}`")
