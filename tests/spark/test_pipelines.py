"""Pipelines from a configuration to their sinks, in a real session over an embedded broker."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.spark.embedded_broker import EmbeddedBroker, queue
from tests.spark.needed import need
from tests.waiting import wait_until

need("pyspark", "pyarrow")

from rmqd.spark.engine.spark_figures import BatchProgress, ProgressListener  # noqa: E402
from tests.spark.group_queries import (  # noqa: E402
    GROUP,
    SECONDS,
    archive_order,
    start,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from rmqd.spark.session.group_spec import GroupSpec


class Counts:
    """Counts of the batches that a query reported."""

    def __init__(self, spark: SparkSession, order: GroupSpec) -> None:
        self._streams = spark.streams
        self._listener = ProgressListener(self._add, order)
        self.ranges: list[tuple[str, int, int]] = []
        self.received: dict[str, int] = {}
        self.handled: dict[str, dict[str, int]] = {}
        self.lost = 0

    def __enter__(self) -> Counts:
        self._streams.addListener(self._listener)
        return self

    def __exit__(self, *_: object) -> None:
        self._streams.removeListener(self._listener)

    def _add(self, progress: BatchProgress) -> None:
        for outcome in progress.outcomes:
            self.ranges.append((str(outcome.queue), outcome.start, outcome.end))
            self.lost += outcome.lost_messages
            for topic in outcome.topic_counters:
                self.received[topic.topic] = self.received.get(topic.topic, 0) + topic.received
                handled = self.handled.setdefault(topic.topic, {})
                for result, count in topic.handled.items():
                    handled[result] = handled.get(result, 0) + count


def run(spark: SparkSession, order: GroupSpec, folder: Path) -> None:
    """Run the group's query until it has read everything."""
    assert start(spark, order, folder).awaitTermination(SECONDS)


def archived(folder: Path) -> list[dict[str, Any]]:
    """Read the archived rows without Spark."""
    import pyarrow.dataset  # type: ignore[import-untyped]  # imports pandas, which would slow down the collection

    table = pyarrow.dataset.dataset(folder / "archive", format="parquet", partitioning="hive").to_table()
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


# --- archive


def test_topics_are_archived_once_by_date_and_topic(
    spark: SparkSession, broker: EmbeddedBroker, tmp_path: Path
) -> None:
    """Each topic has its own filter. A second run continues, and the group's offsets on the broker follow.

    Messages that expire between the runs are counted as lost, and have no rows.
    """
    broker.fill("orders", 2, 5)
    broker.create_topic("refunds", 1)
    broker.send("refunds", "first", tags="paid")
    broker.send("refunds", "second", tags="open")
    subscriptions = {"subscriptions": {"orders": "*", "refunds": "paid"}}
    order = archive_order(broker.nameserver, tmp_path, subscriptions, columns=["body", "msg_id"], body="text")
    with Counts(spark, order) as counts:
        run(spark, order, tmp_path)
        bodies = [f"{queue_id}:{number}" for queue_id in range(2) for number in range(5)]
        rows = archived(tmp_path)
        assert sorted(row["body"] for row in rows if row["topic"] == "orders") == bodies
        assert [row["body"] for row in rows if row["topic"] == "refunds"] == ["first"]
        assert set(rows[0]) == {"body", "msg_id", "date", "topic"}
        assert {row["date"] for row in rows} == {datetime.now(UTC).date().isoformat()}
        assert [path.parent.name for path in sorted((tmp_path / "archive").rglob("*.parquet"))] == [
            "topic=orders",
            "topic=refunds",
        ]
        wait_until(lambda: counts.received == {"orders": 10, "refunds": 1}, "the batch is counted")
        assert {topic: handled["acked"] for topic, handled in counts.handled.items()} == counts.received
        assert sorted(counts.ranges) == [
            (str(queue("orders", 0)), 0, 5),
            (str(queue("orders", 1)), 0, 5),
            (str(queue("refunds", 0)), 0, 2),
        ]
        assert broker.offsets(GROUP, "orders") == {0: 5, 1: 5}
        assert counts.lost == 0
        broker.send("orders", "expired", "expired, too", queue_id=1)
        broker.pass_hours(73)
        broker.send("orders", "more", queue_id=1)
        run(spark, order, tmp_path)
        assert sorted(row["body"] for row in archived(tmp_path)) == sorted([*bodies, "first", "more"])
        wait_until(lambda: counts.received["orders"] == 11, "the second run is counted")
        assert counts.lost == 2
