"""The sink without a JVM: options, columns, rows, and writers that are called as Spark calls them."""

from __future__ import annotations

import datetime
import gc
import pickle
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rmqd.errors import RemotingError, RmqdError, RouteNotFoundError
from rmqd.testing.rocketmq import RocketMQ
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

import pyarrow as pa  # type: ignore[import-untyped]  # noqa: E402
from pyspark import TaskContext  # noqa: E402
from pyspark.sql.types import StructType  # noqa: E402

from rmqd.spark.session import spark_process as worker_garbage  # noqa: E402
from rmqd.spark.sink.sink_writer import StoredRowCount  # noqa: E402
from rmqd.spark.source.source_format import RocketMQSource  # noqa: E402
from tests.spark.test_sink import (  # noqa: E402
    batch,
    write,
)


def test_the_topic_of_a_row(embedded: RocketMQ) -> None:
    """By the column, where the option is not set."""
    embedded.create_topic("a")
    embedded.create_topic("b")
    schema = StructType().add("body", "string").add("topic", "string")
    writer = RocketMQSource({"nameserver": embedded.nameserver}).writer(schema, False)
    writer.write(iter([batch([{"body": "1", "topic": "a"}, {"body": "2", "topic": "b"}])]))
    assert [message.body for topic in "ab" for message in embedded.messages(topic)] == [b"1", b"2"]


def test_delays(embedded: RocketMQ) -> None:
    """A level, or a time; a run of a handler sees both, as the kit's clock jumps."""
    embedded.create_topic("orders")
    due = datetime.datetime.fromtimestamp(int(embedded.now()) + 3600, datetime.UTC)
    write(embedded.nameserver, [{"body": "level", "delay_level": 3}, {"body": "time", "deliver_at": due}])
    assert embedded.messages("orders") == []
    seen: dict[bytes, float] = {}
    embedded.run_handler(lambda batch: seen.update({one.body: embedded.now() for one in batch}), "orders", "late")
    assert seen.keys() == {b"level", b"time"}
    assert seen[b"time"] >= due.timestamp()


def test_a_row_that_is_refused_keeps_no_other_one_from_being_stored(embedded: RocketMQ) -> None:
    """They share a request, and the error is of that row."""
    embedded.create_topic("orders")
    rows: list[dict[str, Any]] = [{"body": str(number)} for number in range(5)]
    rows[3]["tags"] = "t" * 40_000
    with pytest.raises(RmqdError, match="propert"):
        write(embedded.nameserver, rows)
    assert [message.body for message in embedded.messages("orders")][:3] == [b"0", b"1", b"2"]


def test_a_worker_leaves_its_imports_out_of_later_searches_for_garbage(
    embedded: RocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that reads does."""
    embedded.create_topic("orders")
    monkeypatch.setattr(worker_garbage, "_frozen_in", 0)  # a test of reading may have run in this process
    before = gc.get_freeze_count()
    write(embedded.nameserver, [{"body": "by the driver"}])
    assert gc.get_freeze_count() <= before
    monkeypatch.setattr(TaskContext, "_taskContext", None)  # what is made next stays there, and ends with the test
    context = TaskContext()
    monkeypatch.setattr(context, "_localProperties", {}, raising=False)
    monkeypatch.setattr(context, "_partitionId", 0, raising=False)
    write(embedded.nameserver, [{"body": "by a task"}])
    assert gc.get_freeze_count() > before


def test_what_is_written_again_can_be_told(embedded: RocketMQ) -> None:
    """A task that Spark tries again gives every row the marks that it had."""
    embedded.create_topic("orders", 4)
    rows = [{"body": str(number)} for number in range(100)]
    schema = StructType().add("body", "string")
    writer = RocketMQSource({"nameserver": embedded.nameserver, "topic": "orders"}).writer(schema, False)
    for _ in range(2):
        pickle.loads(pickle.dumps(writer)).write(iter([batch(rows[:60]), batch(rows[60:])]))
    names = ("RMQD_QUERY", "RMQD_PART", "RMQD_SEQ")
    marks = [
        (*(message.properties[name] for name in names), message.body.decode())
        for message in embedded.messages("orders")
    ]
    assert len(marks) == 200
    assert len(set(marks)) == 100
    assert {(sequence, body) for *_, sequence, body in marks} == {(str(n), str(n)) for n in range(100)}


@pytest.mark.slow
def test_a_broker_that_comes_back_is_waited_for(broker: EmbeddedBroker) -> None:
    """A row is tried again for as long as the option says; the task fails after that."""
    broker.create_topic("orders", 2)
    write(broker.nameserver, [{"body": "before"}])

    back = threading.Timer(0.3, broker.start)

    def rows() -> Iterator[pa.RecordBatch]:
        yield batch([{"body": str(number)} for number in range(50)])
        broker.stop()
        back.start()
        yield batch([{"body": str(number)} for number in range(50, 100)])

    writer = RocketMQSource({"nameserver": broker.nameserver, "topic": "orders"}).writer(
        StructType().add("body", "string"), False
    )
    assert writer.write(rows()) == StoredRowCount(100)
    back.join()
    broker.stop()
    with pytest.raises(RemotingError):
        write(broker.nameserver, [{"body": "lost"}], unavailableToleranceMs="0")


def test_a_topic_that_is_not_there_is_not_waited_for(embedded: RocketMQ) -> None:
    """Nor a queue."""
    embedded.create_topic("orders", 2)
    with pytest.raises(RouteNotFoundError, match="orders has no writable queue 7"):
        write(embedded.nameserver, [{"body": "a", "queue_id": 7}])
