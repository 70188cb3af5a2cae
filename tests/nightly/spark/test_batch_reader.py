"""Bounded reads over an embedded broker, called as Spark calls them."""

from __future__ import annotations

import gc
import json

import pytest

from rmqd.errors import DataLossError, RmqdError, RouteNotFoundError
from tests.spark.embedded_broker import BROKER, EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark import TaskContext  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from rmqd.spark.source.source_format import RocketMQSource  # noqa: E402
from tests.spark.test_batch_reader import (  # noqa: E402
    at,
    bodies,
    read,
)


def test_timestamps_limit_a_read(broker: EmbeddedBroker) -> None:
    """Store times count. The start is included, and the end is excluded."""
    broker.create_topic("orders", 1)
    times = []
    for body in ("first", "second", "third"):
        broker.send("orders", body)
        broker.pass_hours(1)
        times.append(broker.now_ms())
    assert bodies(read(broker, startingTimestamp=str(times[0]), endingTimestamp=str(times[1]))) == ["second"]
    assert bodies(read(broker, startingOffsetsByTimestamp=at({"0": times[1]}))) == ["third"]
    late = str(times[2] + 1)
    assert read(broker, startingTimestamp=late, startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(RmqdError, match="has no message stored at"):
        read(broker, startingTimestamp=late)


def test_a_read_starts_at_the_groups_offsets_and_commits_nothing(broker: EmbeddedBroker) -> None:
    """A bounded read cannot know whether its rows were used."""
    broker.fill("orders", 2, 5)
    broker.commit("reports", "orders", {0: 3})
    assert bodies(read(broker, groupId="reports")) == ["0:3", "0:4", *(f"1:{number}" for number in range(5))]
    assert bodies(read(broker, groupId="reports", startingOffsetsFallback="latest")) == ["0:3", "0:4"]
    assert broker.offsets("reports", "orders") == {0: 3}


def test_topics_by_a_pattern(broker: EmbeddedBroker) -> None:
    """A pattern matches only the users' own topics."""
    for topic in ("orders-eu", "orders-us", "bills"):
        broker.fill(topic, 1, 1)
    rows = read(broker, subscribePattern="orders-.*")
    assert [row["topic"] for row in rows] == ["orders-eu", "orders-us"]
    for topic in ("%RETRY%reports", "%DLQ%reports", "RMQ_SYS_TRACE_TOPIC"):
        broker.fill(topic, 1, 1)
    assert {row["source_topic"] for row in read(broker, subscribePattern=".*", columns="source_topic")} == {
        "orders-eu", "orders-us", "bills",
    }  # fmt: skip


def test_queues_by_name(broker: EmbeddedBroker) -> None:
    """A missing queue is reported."""
    broker.fill("orders", 3, 1)
    assert bodies(read(broker, assign=json.dumps({"orders": {BROKER: [2, 0]}}))) == ["0:0", "2:0"]
    with pytest.raises(RouteNotFoundError, match="but this queue does not exist"):
        read(broker, assign=json.dumps({"orders": {BROKER: [3]}}))


def test_an_empty_topic_has_no_rows(broker: EmbeddedBroker) -> None:
    """Spark then reads a partition of None. This must return no rows."""
    broker.create_topic("orders", 2)
    reader = RocketMQSource({"nameserver": broker.nameserver, "subscribe": "orders"}).reader(StructType())
    assert reader.partitions() == []
    from pyspark.sql.datasource import InputPartition

    assert list(reader.read(InputPartition(None))) == []


def test_a_groups_retries_are_read_with_its_topics(broker: EmbeddedBroker) -> None:
    """The retry topic may be missing. The tag filter applies only to the subscribed topic."""
    broker.fill("orders", 1, 1)
    more = {"groupId": "reports", "includeRetryTopic": "true", "tags": "paid", "columns": "body,topic,source_topic"}
    assert read(broker, **more) == []
    broker.create_topic("%RETRY%reports", 1)
    broker.send("%RETRY%reports", "again", properties={"RETRY_TOPIC": "orders"})
    assert read(broker, **more) == [{"body": b"again", "topic": "orders", "source_topic": "%RETRY%reports"}]


@pytest.mark.slow
def test_offsets_that_the_broker_never_had_are_a_data_loss(broker: EmbeddedBroker) -> None:
    """The given end is beyond the queue's end."""
    broker.fill("orders", 1, 10)
    with pytest.raises(DataLossError, match="offsets 10 to 14 are missing: the broker has 0 to 9"):
        read(broker, endingOffsets=at({"0": 15}))
    assert len(read(broker, endingOffsets=at({"0": 15}), failOnDataLoss="false")) == 10


def test_a_worker_excludes_its_imports_from_garbage_collection(
    broker: EmbeddedBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pyspark.daemon collects garbage after each task, which can take longer than the task. Drivers exclude nothing."""
    broker.fill("orders", 1, 1)
    before = gc.get_freeze_count()
    read(broker)
    assert gc.get_freeze_count() <= before
    monkeypatch.setattr(TaskContext, "_taskContext", None)  # TaskContext sets it below; it is restored after the test
    monkeypatch.setattr(TaskContext, "get", TaskContext)  # as in a task
    read(broker)
    assert gc.get_freeze_count() > before
