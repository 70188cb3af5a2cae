"""Bounded reads over an embedded broker, called as Spark calls them."""

from __future__ import annotations

import json
import os
import pickle
import sys
from importlib.machinery import ModuleSpec
from typing import Any

import pytest

from rmqd.errors import DataLossError, FilterRefusedError, ProtocolError, RmqdError, RouteNotFoundError
from rmqd.wire.messages.properties import COMPRESSED
from tests.spark.embedded_broker import BROKER, EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark.sql.types import StructType  # noqa: E402

from rmqd.spark.source.source_columns import COLUMN_TYPES  # noqa: E402
from rmqd.spark.source.source_format import RocketMQSource  # noqa: E402


def read(broker: EmbeddedBroker, topic: str = "orders", **options: str) -> list[dict[str, Any]]:
    """The rows of all partitions. Partitions are pickled, as between Spark's processes."""
    what = {} if "assign" in options or "subscribePattern" in options else {"subscribe": topic}
    source = RocketMQSource({"nameserver": broker.nameserver, "unavailableToleranceMs": "0", **what, **options})
    reader = source.reader(StructType())
    parts = pickle.loads(pickle.dumps(reader.partitions()))
    return [row for part in parts for batch in reader.read(part) for row in rows_of(batch)]


def rows_of(batch: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def bodies(rows: list[dict[str, Any]]) -> list[str]:
    return [row["body"].decode() for row in rows]


def at(offsets: dict[str, int], topic: str = "orders") -> str:
    return json.dumps({topic: {BROKER: offsets}})


def test_a_topic_is_read_completely_and_in_queue_order(broker: EmbeddedBroker) -> None:
    """150 messages per queue and 32 per pull: more pulls than can be in flight at once."""
    broker.fill("orders", 2, 150)
    rows = read(broker, pullParallelism="3")
    assert bodies(rows) == [f"{queue_id}:{number}" for queue_id in range(2) for number in range(150)]


@pytest.mark.parametrize("name", ["partitions", "initialOffset", "prepareForTriggerAvailableNow"])
def test_spark_shows_only_the_reason(broker: EmbeddedBroker, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without SPARK_HIDE_TRACEBACK, Spark shows thirty lines with the reason at the end."""
    source = RocketMQSource({"nameserver": broker.nameserver, "subscribe": "absent"})
    reader: Any = source.reader(StructType()) if name == "partitions" else source.streamReader(StructType())
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", ModuleSpec("pyspark.daemon", None))
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")
    with pytest.raises(RmqdError, match="absent"):
        getattr(reader, name)()
    assert os.environ["SPARK_HIDE_TRACEBACK"] == "1"


def test_columns_hold_the_fields_of_a_message(broker: EmbeddedBroker) -> None:
    broker.create_topic("orders", 1)
    broker.send("orders", "paid 7", tags="paid", properties={"__SHARDINGKEY": "c1", "KEYS": "k1 k2", "n": "7"})
    (row,) = read(broker, columns=",".join(COLUMN_TYPES))
    assert row.keys() == COLUMN_TYPES.keys()
    expected = {
        "topic": "orders", "source_topic": "orders", "broker": BROKER, "queue_id": 0, "queue_offset": 0,
        "keys": "k1 k2", "tags": "paid", "body": b"paid 7", "sharding_key": "c1", "reconsume_times": 0, "flag": 0,
    }  # fmt: skip
    assert {name: row[name] for name in expected} == expected
    properties = dict(row["properties"])
    assert (properties["n"], properties["UNIQ_KEY"]) == ("7", row["msg_id"])
    assert len(row["offset_msg_id"]) == 32
    assert 0 <= broker.now_ms() / 1000 - row["store_timestamp"].timestamp() < 60
    assert row["born_host"].startswith("127.0.0.1:")


def test_a_read_is_bounded_by_offsets(broker: EmbeddedBroker) -> None:
    """The end is exclusive. -2 and -1 are the queue's first and last offset, which unnamed queues use too."""
    broker.fill("orders", 3, 10)
    rows = read(broker, startingOffsets=at({"0": 4, "1": -2}), endingOffsets=at({"0": 6, "1": 1, "2": 2}))
    assert bodies(rows) == ["0:4", "0:5", "1:0", "2:0", "2:1"]


def test_the_broker_filters_by_tags(broker: EmbeddedBroker) -> None:
    """Java's hashes of Aa and BB are equal, so the source compares the tags too."""
    broker.create_topic("orders", 1)
    for number in range(60):
        broker.send("orders", f"{number}", tags=["Aa", "BB", "C"][number % 3])
    assert bodies(read(broker, tags="Aa")) == [str(number) for number in range(0, 60, 3)]
    assert len(read(broker, tags="BB || C")) == 40


def test_the_broker_filters_by_sql(broker: EmbeddedBroker) -> None:
    """It refuses an invalid filter. In a pull, an invalid filter would match every message."""
    broker.create_topic("orders", 1)
    for number in range(100):
        broker.send("orders", f"{number}", properties={"n": str(number)})
    assert bodies(read(broker, sql="n >= 98")) == ["98", "99"]
    with pytest.raises(FilterRefusedError, match="refuses the SQL filter"):
        read(broker, sql="n >>> 98")


def test_long_queues_are_divided(broker: EmbeddedBroker) -> None:
    """Every message is read once."""
    broker.fill("orders", 1, 100)
    expected = [f"0:{number}" for number in range(100)]
    for options, parts in (({"minPartitions": "3"}, 3), ({"maxRecordsPerPartition": "30"}, 4)):
        source = RocketMQSource({"nameserver": broker.nameserver, "subscribe": "orders", **options})
        assert len(source.reader(StructType()).partitions()) == parts
        assert bodies(read(broker, **options)) == expected


def test_short_queues_share_tasks(broker: EmbeddedBroker) -> None:
    """Every message is read once, in queue order. A loss in one queue does not affect the others of its task."""
    broker.fill("orders", 4, 5)
    broker.pass_hours(80)  # longer than the retention time
    for queue_id in range(4):
        broker.send("orders", *(f"{queue_id}:{number}" for number in range(5, 8 + queue_id)), queue_id=queue_id)
    options = {"maxPartitions": "2", "startingOffsets": at({"1": 3}), "failOnDataLoss": "false"}
    source = RocketMQSource({"nameserver": broker.nameserver, "subscribe": "orders", **options})
    assert len(source.reader(StructType()).partitions()) == 2
    rows = read(broker, **options)
    assert {
        queue_id: [row["body"].decode() for row in rows if row["queue_id"] == queue_id] for queue_id in range(4)
    } == {queue_id: [f"{queue_id}:{number}" for number in range(5, 8 + queue_id)] for queue_id in range(4)}
    with pytest.raises(DataLossError, match="orders"):
        read(broker, maxPartitions="1", startingOffsets=at({"1": 3}))


def test_a_missing_topic_is_an_error(broker: EmbeddedBroker) -> None:
    """Its name may be misspelt."""
    with pytest.raises(RouteNotFoundError, match="no route for topic order"):
        read(broker, "order")


def test_a_corrupt_message_fails_its_task_or_has_a_decode_error(broker: EmbeddedBroker) -> None:
    """The mode decides. In mode PERMISSIVE the other messages are read."""
    broker.create_topic("orders", 1)
    broker.send("orders", "first")
    broker.send("orders", "not compressed", sys_flag=COMPRESSED)
    broker.send("orders", "last")
    with pytest.raises(ProtocolError, match="orders@broker-a:0: the message at offset 1 is corrupt: the body is not"):
        read(broker)
    rows = read(broker, mode="PERMISSIVE")
    assert [row["body"] for row in rows] == [b"first", None, b"last"]
    assert [row["decode_error"] for row in rows[::2]] == [None, None]
    assert rows[1]["decode_error"].startswith("the body is not a ZLIB stream")


def test_expired_messages_are_a_data_loss(broker: EmbeddedBroker) -> None:
    """The error names the queue, the missing offsets and the existing ones. Without failOnDataLoss they are skipped."""
    broker.create_topic("orders", 1)
    broker.send("orders", *(f"{number}" for number in range(50)))
    broker.pass_hours(71)
    broker.send("orders", *(f"{number}" for number in range(50, 100)))
    broker.pass_hours(2)
    assert len(read(broker)) == 50
    with pytest.raises(DataLossError) as raised:
        read(broker, startingOffsets=at({"0": 20}))
    assert str(raised.value) == (
        "data loss in orders@broker-a:0: offsets 20 to 49 are missing: the broker has 50 to 99"
    )
    rows = read(broker, startingOffsets=at({"0": 20}), failOnDataLoss="false")
    assert bodies(rows) == [f"{number}" for number in range(50, 100)]


def test_a_task_retries_while_its_broker_is_unreachable(broker: EmbeddedBroker) -> None:
    """The option unavailableToleranceMs limits the time of retries."""
    broker.fill("orders", 1, 100)
    source = RocketMQSource({"nameserver": broker.nameserver, "subscribe": "orders", "rowsPerBatch": "32"})
    reader = source.reader(StructType())
    (part,) = reader.partitions()
    batches = reader.read(part)
    first = next(batches)
    broker.stop()
    broker.start()
    rows = [row["body"].decode() for batch in (first, *batches) for row in rows_of(batch)]
    assert rows == [f"0:{number}" for number in range(100)]
