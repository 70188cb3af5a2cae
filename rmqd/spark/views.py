"""Temporary SQL views of topics. Spark's catalog cannot store tables of a Python source together with its options."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def create_views(spark: SparkSession, nameserver: str, topics: Iterable[str], **options: object) -> None:
    """Create or replace a temporary view of each topic, named like the topic.

    `options` are source options for all views. Raises the errors of `load()` if an option is invalid. A missing topic
    is not reported here, but when its view is queried.
    """
    for topic in topics:
        reader = spark.read.format("rocketmq").option("nameserver", nameserver).option("subscribe", topic)
        for name, value in options.items():
            reader = reader.option(name, value)  # type: ignore[arg-type]
        reader.load().createOrReplaceTempView(f"`{topic}`")
