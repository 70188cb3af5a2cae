"""Measure one checkout's source or sink in a separate session. `spark_before` runs this file by its path.

`rmqd` and the package `bench` are from the checkout in PYTHONPATH, so this file uses only features of old checkouts.
Each run prints one line of JSON, with figures by name.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, ReadMaxRows
from pyspark.sql.types import StructType

from bench.spark_processes import BROKER, spent_seconds
from bench.spark_session import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

THREE = "body,queue_offset,store_timestamp"
BATCHES = 40  # micro-batches with one message of each queue
LEFT_OUT = 5  # the first batches do not count, because they start Spark's processes
SINK_ROWS = 200_000
QUEUES = 8


class BareSource(DataSource):
    """A source of BATCHES micro-batches with QUEUES partitions, each with one constant row."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format()`."""
        return "bench_bare"

    def schema(self) -> str:
        """Return a schema of one column."""
        return "body binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return the reader."""
        return BareReader()


class BareReader(DataSourceStreamReader):
    """The reader. An offset is the number of a batch."""

    def initialOffset(self) -> dict[str, Any]:
        """Begin before the first batch."""
        return {"batch": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Read one batch at a time."""
        return ReadMaxRows(QUEUES)

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        """Return the end of the next batch."""
        return {"batch": min(start["batch"] + 1, BATCHES)}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return a partition for each queue."""
        return [InputPartition(number) for number in range(QUEUES)]

    def read(self, partition: InputPartition) -> Iterator[tuple[bytes]]:
        """Yield one row."""
        yield (b"x" * 256,)


def trigger_ms(frame: DataFrame) -> float:
    """Return the median duration of a streaming query's micro-batches, back to back."""
    query = frame.writeStream.format("noop").start()
    while not any(progress["batchId"] >= BATCHES - 1 for progress in query.recentProgress) and query.isActive:
        time.sleep(0.1)
    times = [one["durationMs"]["triggerExecution"] for one in query.recentProgress if one["numInputRows"]]
    query.stop()
    return float(statistics.median(times[LEFT_OUT:]))


class Probe:
    """The measurements in one session."""

    def __init__(
        self, spark: SparkSession, nameserver: str, topic: str, messages: int, options: dict[str, str]
    ) -> None:
        self._spark = spark
        self._messages = messages
        self._options = {"nameserver": nameserver, "subscribe": topic, **options}
        self._sink = {"nameserver": nameserver, "topic": topic}

    def source(self) -> dict[str, float]:
        """Return messages per second with all columns and with three."""
        found = {}
        for name, more in (("all columns", {}), ("three columns", {"columns": THREE})):
            began = time.perf_counter()
            self._read(more)
            found[f"{name}, messages/s"] = self._messages / (time.perf_counter() - began)
        return found

    def queues(self) -> dict[str, float]:
        """Return the CPU seconds of Spark's processes for one read."""
        before = spent_seconds(())
        self._read({})
        spent = spent_seconds(())
        return {"CPU seconds": sum(spent[kind] - before[kind] for kind in spent if kind != BROKER)}

    def batches(self) -> dict[str, float]:
        """Return the median micro-batch with a message for each queue, and of the bare source."""
        self._spark.dataSource.register(BareSource)
        stream = self._spark.readStream
        options = {**self._options, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(QUEUES)}
        ours = trigger_ms(stream.format("rocketmq").options(**options).load())
        bare = trigger_ms(stream.format(BareSource.name()).load())
        return {"micro-batch, ms": ours, "bare micro-batch, ms": bare, "micro-batch over bare": ours / bare}

    def sink(self) -> dict[str, float]:
        """Return rows per second, in two tasks."""
        body = "cast(repeat('x', 256) AS binary) AS body"
        began = time.perf_counter()
        rows = self._spark.range(0, SINK_ROWS, 1, 2).selectExpr(body)
        rows.write.format("rocketmq").options(**self._sink).mode("append").save()
        return {"rows/s": SINK_ROWS / (time.perf_counter() - began)}

    def _read(self, more: dict[str, str]) -> None:
        frame = self._spark.read.format("rocketmq").options(**self._options, **more).load()
        frame.write.format("noop").mode("overwrite").save()


def main() -> None:
    """Measure one part several times. The first run does not count and is not printed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=("source", "queues", "batches", "sink"))
    parser.add_argument("--nameserver", required=True)
    parser.add_argument("--topic", required=True)
    parser.add_argument("--messages", type=int, required=True)
    parser.add_argument("--runs", type=int, required=True)
    parser.add_argument("--options", type=json.loads, required=True)
    given = parser.parse_args()
    spark = session()
    measure: Callable[[], dict[str, float]] = getattr(
        Probe(spark, given.nameserver, given.topic, given.messages, given.options), given.part
    )
    measure()
    for _ in range(given.runs):
        print(json.dumps(measure()), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
