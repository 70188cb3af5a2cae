"""SQL conditions that limit a read, over an embedded broker. Spark itself applies them once more."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta, timezone

import pytest

from rmqd.errors import ConfigError
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark.sql.datasource import (  # noqa: E402
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.types import StructType  # noqa: E402

from rmqd.spark.session.queue_range import QueueRange  # noqa: E402
from rmqd.spark.source.source_format import (  # noqa: E402
    PushdownBatchReader,
    RocketMQSource,
)


def planned(broker: EmbeddedBroker, *filters: Filter, **options: str) -> list[QueueRange]:
    """Return the ranges that are read with these conditions."""
    given = {"nameserver": broker.nameserver, "subscribe": "orders", "pushdown": "true", **options}
    reader = RocketMQSource(given).reader(StructType())
    assert isinstance(reader, PushdownBatchReader)
    assert list(reader.pushFilters(list(filters))) == list(filters)
    return [one for part in pickle.loads(pickle.dumps(reader)).partitions() for one in part.value]


def spans(ranges: list[QueueRange]) -> dict[tuple[str, int], tuple[int, int]]:
    return {(part.queue.topic, part.queue.queue_id): (part.start, part.end) for part in ranges}


def test_queues_and_offsets(broker: EmbeddedBroker) -> None:
    """All conditions must hold. Unsupported conditions exclude nothing."""
    broker.fill("orders", 3, 10)
    everything = {("orders", queue_id): (0, 10) for queue_id in range(3)}
    assert spans(planned(broker)) == everything
    other = [Not(EqualTo(("queue_id",), 1)), IsNotNull(("tags",)), EqualTo(("body",), b"x"), EqualTo(("a", "b"), 1)]
    assert spans(planned(broker, *other)) == everything
    assert spans(planned(broker, In(("queue_id",), (1, 2, 7)), EqualTo(("queue_id",), 2))) == {("orders", 2): (0, 10)}
    assert planned(broker, EqualTo(("broker",), "broker-b")) == []
    first = EqualTo(("queue_id",), 0)
    for condition, expected in (
        (GreaterThan(("queue_offset",), 3), (3, 10)),  # one more than necessary
        (GreaterThanOrEqual(("queue_offset",), 4), (4, 10)),
        (LessThan(("queue_offset",), 3), (0, 4)),
        (LessThanOrEqual(("queue_offset",), 3), (0, 4)),
        (EqualTo(("queue_offset",), 7), (7, 8)),
        (In(("queue_offset",), (8, 5)), (5, 9)),
    ):
        assert spans(planned(broker, first, condition)) == {("orders", 0): expected}, condition
    assert planned(broker, GreaterThan(("queue_offset",), 10)) == []


def test_conditions_on_the_topic_apply_to_the_topics_of_retried_messages(broker: EmbeddedBroker) -> None:
    """Only source_topic is the retry topic."""
    for topic in ("orders", "bills", "%RETRY%reports"):
        broker.fill(topic, 1, 1)
    options = {"subscribe": "orders,bills", "groupId": "reports", "includeRetryTopic": "true"}
    assert spans(planned(broker, EqualTo(("topic",), "bills"), **options)).keys() == {
        ("bills", 0), ("%RETRY%reports", 0),
    }  # fmt: skip
    assert spans(planned(broker, EqualTo(("source_topic",), "bills"), **options)).keys() == {("bills", 0)}


def test_times_by_the_brokers_index(broker: EmbeddedBroker) -> None:
    """The margin of some seconds allows for changes of brokers' clocks. Any time zone works."""
    broker.create_topic("orders", 1)
    times = []
    for number in range(4):
        times.append(datetime.fromtimestamp(broker.now_ms() / 1000, UTC))
        broker.send("orders", f"{number}")
        broker.pass_hours(1)
    margin = timedelta(seconds=30)
    after = GreaterThan(("store_timestamp",), (times[2] - margin).astimezone(timezone(timedelta(hours=-5))))
    before = LessThan(("store_timestamp",), times[2] - margin)
    assert spans(planned(broker, after)) == {("orders", 0): (2, 4)}
    assert spans(planned(broker, before)) == {("orders", 0): (0, 2)}
    assert spans(planned(broker, LessThan(("store_timestamp",), times[0] + timedelta(days=9)))) == {
        ("orders", 0): (0, 4)
    }
    assert planned(broker, GreaterThan(("store_timestamp",), times[0] + timedelta(days=9))) == []
    near = GreaterThan(("store_timestamp",), times[2] + timedelta(seconds=3))
    assert spans(planned(broker, near)) == {("orders", 0): (2, 4)}


def test_conditions_on_tags_become_the_brokers_filter(broker: EmbeddedBroker) -> None:
    """A tag expression must be able to express them, and no option may set a filter."""
    broker.fill("orders", 1, 1)
    paid = EqualTo(("tags",), "paid")

    def expression(*filters: Filter, **options: str) -> str:
        (part,) = planned(broker, *filters, **options)
        return part.subscription.sub_string

    assert expression(paid) == "paid"
    assert expression(In(("tags",), ("paid", "open"))) == "open || paid"
    assert expression(paid, tags="paid || open") == "paid || open"
    assert expression(paid, sql="n > 5") == "n > 5"
    for unsayable in ("a || b", "*", "", " paid"):
        assert expression(EqualTo(("tags",), unsayable)) == "*"


def test_a_stream_has_no_pushdown(broker: EmbeddedBroker) -> None:
    """Spark passes conditions only to a batch reader."""
    with pytest.raises(ConfigError, match="pushdown: Spark supports it only for"):
        RocketMQSource({"nameserver": "n:1", "subscribe": "orders", "pushdown": "true"}).streamReader(StructType())
