"""The age of messages in the handler at 1,000 a second: in `engine: spark`, and in a bare micro-batch, the floor.

The floor is a source of Spark's Python API with 1,000 messages a second by the clock, in as many partitions as the
topic has queues. foreachBatch collects one row for each partition. This is the plan of `engine: spark` without
RocketMQ, handler and messages. Both use the default trigger.
"""

from __future__ import annotations

import contextlib
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit
from pyspark.sql.types import StructType

from bench import contenders
from bench.handler import AGE
from rmqd.config.model.root_model import RootConfig
from rmqd.spark.handlers.group_source import handler_query
from rmqd.spark.session.group_spec import GroupSpec

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from tests.rocketmq import RealCluster

RATE = 1000
WARM_SECONDS = 8.0  # after the first batch; its messages do not count
FIRST_BATCH_SECONDS = 120.0
FIRST_MESSAGES = 100
BODY_BYTES = 256
QUEUES = 8


class FloorSource(DataSource):
    """A source whose messages are only clock ticks. `began` is the time of the first tick, in seconds since 1970."""

    @classmethod
    def name(cls) -> str:
        return "bench_floor"

    def schema(self) -> str:
        return "outcome binary"

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return FloorReader(float(self.options["began"]))


class FloorReader(DataSourceStreamReader):
    """The reader. An offset is a number of messages."""

    def __init__(self, began: float) -> None:
        self._began = began

    def initialOffset(self) -> dict[str, int]:
        return {"messages": 0}

    def getDefaultReadLimit(self) -> ReadLimit:
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"messages": max(start["messages"], int((time.time() - self._began) * RATE))}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        span = range(start["messages"], end["messages"])
        return [InputPartition(piece) for number in range(QUEUES) if (piece := span[number::QUEUES])]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        if partition.value is None:
            return
        now = time.time()
        births = [self._began + number / RATE for number in partition.value]
        ages = b"".join(AGE.pack(int(1e6 * birth), int(1e6 * (now - birth))) for birth in births)
        yield pa.RecordBatch.from_pydict({"outcome": pa.array([ages], pa.binary())})


def floor(spark: SparkSession, seconds: float) -> float:
    """Return the median age of messages in a bare micro-batch, in milliseconds."""
    spark.dataSource.register(FloorSource)
    ages, first = bytearray(), threading.Event()

    def collect(frame: DataFrame, _: int) -> None:
        for row in frame.collect():
            ages.extend(row.outcome)
        first.set()

    with tempfile.TemporaryDirectory(prefix="rmqd-bench-") as folder:
        frame = spark.readStream.format(FloorSource.name()).option("began", str(time.time())).load()
        query = frame.writeStream.foreachBatch(collect).option("checkpointLocation", folder).start()
        with _ended(query, first):
            since = time.time() + WARM_SECONDS
            query.awaitTermination(int(WARM_SECONDS + seconds))
    return _median_ms(bytes(ages), since)


def engine(spark: SparkSession, cluster: RealCluster, topic: str, seconds: float) -> float:
    """Return the median age of messages in a group's handler, in milliseconds, while they are sent."""
    cluster.create_topic(topic, QUEUES)
    _send(cluster.nameserver, topic, FIRST_MESSAGES)
    first = threading.Event()
    with tempfile.TemporaryDirectory(prefix="rmqd-bench-") as folder:
        ages = Path(folder) / "ages"
        ages.mkdir()
        query = handler_query(
            spark,
            _order(cluster.nameserver, topic, {"folder": str(ages)}),
            checkpoint=f"{folder}/checkpoint",
            starting=None,
            pause_file=f"{folder}/pause",
            on_batch=lambda *_: first.set(),
        )
        with _ended(query, first):
            since = time.time() + WARM_SECONDS
            _send(cluster.nameserver, topic, int((WARM_SECONDS + seconds) * RATE))
            query.processAllAvailable()
        seen = b"".join(path.read_bytes() for path in ages.iterdir())
    return _median_ms(seen, since)


def _order(nameserver: str, topic: str, options: Mapping[str, Any]) -> GroupSpec:
    group = {
        "subscriptions": {topic: "*"},
        "engine": "spark",
        "consume_from_where": "first_offset",
        "handler": {"plugin": "bench.handler:Ages", "options": options},
    }
    return GroupSpec(topic, RootConfig.model_validate({"nameserver": nameserver, "groups": {topic: group}}))


def _send(nameserver: str, topic: str, messages: int) -> None:
    arguments = {"namesrv": nameserver, "topic": topic, "messages": messages, "bytes": BODY_BYTES, "rate": RATE}
    options = [part for name, value in arguments.items() for part in (f"--{name}", str(value))]
    subprocess.run(
        [*contenders.java("Load"), *options],
        cwd=contenders.ROOT, env=contenders.environment(), check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip


@contextlib.contextmanager
def _ended(query: StreamingQuery, first: threading.Event) -> Iterator[None]:
    """Wait for the query's first batch, and stop the query after the block. Raises the query's error."""
    try:
        if not first.wait(FIRST_BATCH_SECONDS):
            raise query.exception() or TimeoutError(f"no micro-batch in {FIRST_BATCH_SECONDS:g} s")
        yield
        if (error := query.exception()) is not None:
            raise error
    finally:
        query.stop()


def _median_ms(seen: bytes, since: float) -> float:
    ages: list[int] = [age for birth, age in AGE.iter_unpack(seen) if birth >= since * 1e6]
    if not ages:
        raise RuntimeError("no message arrived after the warm-up")
    return statistics.median(ages) / 1000
