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


def test_the_topic_of_a_row_comes_from_its_column(embedded: RocketMQ) -> None:
    """The option `topic` is not set."""
    embedded.create_topic("a")
    embedded.create_topic("b")
    schema = StructType().add("body", "string").add("topic", "string")
    writer = RocketMQSource({"nameserver": embedded.nameserver}).writer(schema, False)
    writer.write(iter([batch([{"body": "1", "topic": "a"}, {"body": "2", "topic": "b"}])]))
    assert [message.body for topic in "ab" for message in embedded.messages(topic)] == [b"1", b"2"]


def test_delays(embedded: RocketMQ) -> None:
    """A level, or a time. A handler receives both messages, because the test kit's clock jumps."""
    embedded.create_topic("orders")
    due = datetime.datetime.fromtimestamp(int(embedded.now()) + 3600, datetime.UTC)
    write(embedded.nameserver, [{"body": "level", "delay_level": 3}, {"body": "time", "deliver_at": due}])
    assert embedded.messages("orders") == []
    seen: dict[bytes, float] = {}
    embedded.run_handler(lambda batch: seen.update({one.body: embedded.now() for one in batch}), "orders", "late")
    assert seen.keys() == {b"level", b"time"}
    assert seen[b"time"] >= due.timestamp()


def test_a_refused_row_does_not_block_other_rows(embedded: RocketMQ) -> None:
    """They share a request, and the error is about that row."""
    embedded.create_topic("orders")
    rows: list[dict[str, Any]] = [{"body": str(number)} for number in range(5)]
    rows[3]["tags"] = "t" * 40_000
    with pytest.raises(RmqdError, match="propert"):
        write(embedded.nameserver, rows)
    assert [message.body for message in embedded.messages("orders")][:3] == [b"0", b"1", b"2"]


def test_a_worker_excludes_its_imports_from_garbage_collection(
    embedded: RocketMQ, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Workers that read do the same."""
    embedded.create_topic("orders")
    monkeypatch.setattr(worker_garbage, "_frozen_in", 0)  # a test of reading may have run in this process
    before = gc.get_freeze_count()
    write(embedded.nameserver, [{"body": "by the driver"}])
    assert gc.get_freeze_count() <= before
    monkeypatch.setattr(TaskContext, "_taskContext", None)  # TaskContext sets it below; it is restored after the test
    context = TaskContext()
    monkeypatch.setattr(context, "_localProperties", {}, raising=False)
    monkeypatch.setattr(context, "_partitionId", 0, raising=False)
    write(embedded.nameserver, [{"body": "by a task"}])
    assert gc.get_freeze_count() > before


def test_rows_that_are_written_again_can_be_recognized(embedded: RocketMQ) -> None:
    """A task that Spark retries gives every row the same marks."""
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
def test_an_unreachable_broker_is_waited_for(broker: EmbeddedBroker) -> None:
    """A row is sent again for as long as the option says. After that the task fails."""
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


def test_a_missing_queue_is_not_waited_for(embedded: RocketMQ) -> None:
    embedded.create_topic("orders", 2)
    with pytest.raises(RouteNotFoundError, match="orders has no writable queue 7"):
        write(embedded.nameserver, [{"body": "a", "queue_id": 7}])
