"""Fill a topic and read it with Spark's own Kafka source, on commands from standard input. Does not use rmqd.

Arguments: Kafka's address, the topic, its partitions, the session's settings as JSON. Commands and responses are JSON
objects, one a line.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from pyspark.sql import SparkSession


def fill(spark: SparkSession, kafka: dict[str, str], topic: str, partitions: int, records: int, size: int) -> None:
    """Store values of `size` bytes in each partition in turn, without keys and headers."""
    rows = spark.range(0, records, 1, partitions).selectExpr(
        f"cast(rpad(cast(id as string), {size}, 'abcdefghijklmnopqrstuvwxyz') as binary) as value",
        f"cast(id % {partitions} as int) as partition",
    )
    # without idempotence: with it, the first batches expired unsent after two minutes on a busy machine
    unnumbered = {"kafka.enable.idempotence": "false", "kafka.acks": "1"}
    rows.write.format("kafka").options(**kafka, **unnumbered, topic=topic).save()
    stored = spark.read.format("kafka").options(**kafka, subscribe=topic, startingOffsets="earliest").load().count()
    if stored != records:
        raise RuntimeError(f"{stored} of {records} records are stored")


def read(spark: SparkSession, kafka: dict[str, str], topic: str) -> float:
    """Read the whole topic into a no-op sink. Returns the seconds."""
    frame = spark.read.format("kafka").options(**kafka, subscribe=topic, startingOffsets="earliest").load()
    began = time.perf_counter()
    frame.write.format("noop").mode("overwrite").save()
    return time.perf_counter() - began


def main() -> None:
    """Serve until standard input ends."""
    address, topic, partitions, settings = sys.argv[1:]
    builder = SparkSession.builder.appName("rmqd bench")
    for key, value in json.loads(settings).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    kafka = {"kafka.bootstrap.servers": address}
    for line in sys.stdin:
        told: dict[str, Any] = json.loads(line)
        answer = {}
        if told["do"] == "fill":
            fill(spark, kafka, topic, int(partitions), told["records"], told["bytes"])
        else:
            answer["seconds"] = read(spark, kafka, topic)
        print(json.dumps(answer), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
