"""The Spark source and sink through Spark Connect: a client, a server in another JVM, and automatic discovery.

It takes a minute, and packages that rmqd does not need: `pip install 'pyspark[connect]'`.
"""

from __future__ import annotations

import importlib
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from rmqd.errors import RmqdError
from tests.spark.embedded_broker import EmbeddedBroker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOP: Final = Path(__file__).parents[3]
QUEUES: Final = 4
SECONDS: Final = 120


@dataclass(frozen=True, slots=True)
class SparkConnectResult:
    """The rows of a bounded read, the copies that a stream wrote, and its group's committed offsets."""

    pyspark: str
    messages: int
    read: int
    copied: int
    committed: int
    refused: str
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether each message was read and copied once, the group has no lag, and wrong options are reported."""
        counts = {self.read, self.copied, self.committed}
        return counts == {self.messages} and "nameserver: missing" in self.refused

    def report(self) -> str:
        found = f"{self.messages} messages, {self.read} read, {self.copied} copied, {self.committed} committed"
        told = "told" if "nameserver: missing" in self.refused else f"not told: {self.refused}"
        return f"PySpark {self.pyspark} Connect, {self.seconds:.0f} s: {found}; wrong options are {told}"

    def cells(self) -> list[object]:
        """Return the row of the campaign's table."""
        return [self.pyspark, self.messages, self.read, self.copied, self.committed, f"{self.seconds:.0f}"]


class SparkConnect:
    """One run, in a process without an earlier Spark session."""

    def __init__(self, messages: int, directory: Path) -> None:
        self._each = messages // QUEUES
        self._directory = directory

    def run(self) -> SparkConnectResult:
        """Run the campaign. Raises RmqdError if Spark Connect is not installed."""
        try:
            importlib.import_module("grpc")
        except ImportError as error:
            raise RmqdError(f"{error}: Spark Connect needs pip install 'pyspark[connect]'") from error
        import pyspark
        from pyspark.sql import SparkSession

        from rmqd.spark.prepare import prepare

        began = time.monotonic()
        # instead of an installed wheel
        os.environ["PYTHONPATH"] = os.pathsep.join(map(str, (TOP, TOP / "rmqd" / "spark" / "discovery")))
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
        prepare()
        with EmbeddedBroker(self._directory / "broker") as broker:
            broker.fill("orders", QUEUES, self._each)
            broker.create_topic("copies", QUEUES)
            spark = SparkSession.builder.remote("local[2,4]").getOrCreate()
            try:
                read = self._read(spark, broker, "orders")
                self._copy(spark, broker)
                return SparkConnectResult(
                    pyspark.__version__,
                    QUEUES * self._each,
                    read,
                    self._read(spark, broker, "copies"),
                    sum(broker.offsets("connect", "orders").values()),
                    self._refusal(spark),
                    time.monotonic() - began,
                )
            finally:
                spark.stop()

    @staticmethod
    def _read(spark: SparkSession, broker: EmbeddedBroker, topic: str) -> int:
        """Return the number of messages of a topic; -1 if a body occurs twice."""
        frame = spark.read.format("rocketmq").options(nameserver=broker.nameserver, subscribe=topic).load()
        (row,) = frame.selectExpr("count(*) AS messages", "count(DISTINCT body) AS bodies").collect()
        return int(row.messages) if row.messages == row.bodies else -1

    def _copy(self, spark: SparkSession, broker: EmbeddedBroker) -> None:
        source = spark.readStream.format("rocketmq").options(
            nameserver=broker.nameserver, subscribe="orders", groupId="connect", maxOffsetsPerTrigger=self._each
        )
        query = (
            source.load()
            .writeStream.format("rocketmq")
            .options(nameserver=broker.nameserver, topic="copies")
            .option("checkpointLocation", str(self._directory / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        if not query.awaitTermination(SECONDS):
            raise RmqdError(f"the stream did not end in {SECONDS} s: {query.status}")

    @staticmethod
    def _refusal(spark: SparkSession) -> str:
        try:
            spark.read.format("rocketmq").option("subscribe", "orders").load().count()
        except Exception as error:  # noqa: BLE001  # Spark may wrap the error: its text is compared
            return str(error)
        return "nothing was refused"
