"""The benchmark's Spark session, with two cores as in its goals."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bench import contenders
from rmqd.spark import register
from rmqd.spark.prepare import prepare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MASTER = "local[2,4]"  # four attempts, like rmqd's groups
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
}


def session() -> SparkSession:
    """Return a session with the format `rocketmq`, whose Python processes find this package."""
    from pyspark.sql import SparkSession

    paths = [str(contenders.ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    prepare()
    builder = SparkSession.builder.master(MASTER).appName("rmqd bench")
    for key, value in SETTINGS.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    register(spark)
    return spark
