"""Queues, topics and retries that change while a stream reads them; over an embedded broker, as Spark calls."""

from __future__ import annotations

import json

import pytest
from structlog.testing import capture_logs

from rmqd.errors import DataLossError, FilterRefusedError
from tests.spark.embedded_broker import BROKER, EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from tests.spark.micro_batches import Checkpoint, Killed, Query  # noqa: E402
from tests.spark.stream_options import grouped, numbers, options  # noqa: E402


def test_a_new_topic_is_read_from_its_first_message(broker: EmbeddedBroker) -> None:
    """The query's pattern matches the new topic."""
    broker.fill("orders-eu", 1, 1)
    query = Query(Checkpoint(), options(broker, subscribePattern="orders-.*"))
    query.run_until_idle()
    broker.create_topic("orders-us", 1)
    broker.send("orders-us", "howdy")
    assert query.run_until_idle()[1:] == [["howdy"]]


def test_a_pattern_may_match_nothing_yet(broker: EmbeddedBroker) -> None:
    """The query waits for its first topic."""
    query = Query(Checkpoint(), options(broker, subscribePattern="orders-.*", startingOffsets="latest"))
    assert query.run_until_idle() == [[]]
    broker.fill("orders-us", 1, 1)
    assert query.run_until_idle()[1:] == [["0:0"]]


def test_an_sql_filter_is_checked_for_each_new_queue(broker: EmbeddedBroker) -> None:
    """A pull would treat a filter that the broker cannot parse as "everything". It is also checked after a restart."""
    broker.fill("orders", 1, 2)
    checkpoint = Checkpoint()
    query = Query(checkpoint, options(broker, sql="n > 1"))
    assert query.run_until_idle() == [[]]
    broker.create_topic("orders", 2)
    broker.send("orders", "1:0", queue_id=1, properties={"n": "2"})
    assert query.run_until_idle()[1:] == [["1:0"]]
    with pytest.raises(FilterRefusedError, match="refuses the SQL filter"):
        Query(checkpoint, options(broker, sql="n >>> 1")).poll()


def test_a_deleted_topic_keeps_its_offsets(broker: EmbeddedBroker) -> None:
    """The query continues with the other topics."""
    broker.fill("orders", 1, 2)
    broker.fill("bills", 1, 2)
    query = Query(Checkpoint(), {**options(broker), "subscribe": "orders,bills"})
    query.run_until_idle()
    broker.delete_topic("bills")
    broker.send("orders", "0:2")
    assert query.run_until_idle()[1:] == [["0:2"]]
    assert json.loads(query.checkpoint.offsets[-1])["q"]["bills"] == {BROKER: {"0": 2}}


def test_a_deleted_topic_with_unread_messages_is_a_data_loss(broker: EmbeddedBroker) -> None:
    """The checkpoint has the topic, but no broker does. Without failOnDataLoss the query continues with the others."""
    broker.fill("orders", 1, 2)
    broker.fill("bills", 1, 1)
    checkpoint, both = Checkpoint(), {**options(broker), "subscribe": "orders,bills"}
    query = Query(checkpoint, both)
    query.poll()
    broker.send("orders", "0:2")
    broker.send("bills", *numbers(0, 1, 5))
    with pytest.raises(Killed):
        query.poll(die_before_commit=True)
    broker.delete_topic("bills")
    with pytest.raises(DataLossError) as raised:
        Query(checkpoint, both).poll()
    assert str(raised.value) == (
        "data loss in bills@broker-a:0: offsets 1 to 4 are missing: no name server knows the queue's broker anymore"
    )
    with capture_logs() as logs:
        assert Query(checkpoint, {**both, "failOnDataLoss": "false"}).run_until_idle() == [["0:2"]]
    assert [entry["skipped"] for entry in logs if entry["event"] == "spark.data_lost"] == [4]


def test_a_topic_that_returns_continues_at_its_offset(broker: EmbeddedBroker) -> None:
    """The checkpoint has kept it."""
    broker.fill("orders", 1, 2)
    broker.fill("bills", 1, 2)
    checkpoint, both = Checkpoint(), {**options(broker), "subscribe": "orders,bills"}
    Query(checkpoint, both).run_until_idle()
    broker.send("orders", "0:2")
    broker.send("bills", "0:2")
    Query(checkpoint, options(broker)).run_until_idle()
    assert "bills" in json.loads(checkpoint.offsets[-1])["gone"]
    assert Query(checkpoint, both).run_until_idle() == [["0:2"]]
    assert "gone" not in json.loads(checkpoint.offsets[-1])


def test_a_topic_that_becomes_readable_again_continues_at_its_offset(broker: EmbeddedBroker) -> None:
    """The topic counts as deleted until it is readable again."""
    broker.fill("orders", 1, 1)
    broker.fill("bills", 1, 2)
    query = Query(Checkpoint(), {**options(broker), "subscribe": "orders,bills"})
    query.run_until_idle()
    for permission, expected in ((2, ["0:1"]), (6, ["0:2", "0:2"])):
        broker.create_topic("bills", 1, permission)
        done = len(query.rows)
        broker.send("orders", f"0:{done}")
        if permission == 6:
            broker.send("bills", "0:2")
        assert query.run_until_idle()[done:] == [expected]
        assert ("gone" in json.loads(query.checkpoint.offsets[-1])) == (permission == 2)


def test_a_read_only_queue_is_drained(broker: EmbeddedBroker) -> None:
    """Operators take a broker out of service this way."""
    broker.fill("orders", 2, 3)
    broker.create_topic("orders", 2, permission=4)
    query = Query(Checkpoint(), options(broker))
    assert query.run_until_idle() == [numbers(0, 0, 3) + numbers(1, 0, 3)]
    assert "gone" not in json.loads(query.checkpoint.offsets[-1])


def test_retries_are_read_from_the_first_one(broker: EmbeddedBroker) -> None:
    """The retry topic did not exist when the query started."""
    broker.fill("orders", 1, 1)
    query = Query(Checkpoint(), grouped(broker, includeRetryTopic="true", tags="paid"))
    with capture_logs() as logs:
        assert query.run_until_idle() == [[]]
    assert not [entry for entry in logs if entry["log_level"] not in ("info", "debug")]
    broker.create_topic("%RETRY%reports", 1)
    broker.send("%RETRY%reports", "again")
    assert query.run_until_idle()[1:] == [["again"]]
    assert broker.offsets("reports", "%RETRY%reports") == {0: 1}


def test_start_options_do_not_apply_to_a_groups_retries(broker: EmbeddedBroker) -> None:
    """Offsets that are given for the retry topic do apply."""
    broker.fill("orders", 1, 3)
    broker.fill("%RETRY%reports", 1, 3)
    more = grouped(broker, includeRetryTopic="true", startingOffsetsFallback="latest", commitOffsets="false")
    assert Query(Checkpoint(), more).run_until_idle() == [numbers(0, 0, 3)]
    given = {**more, "startingOffsets": json.dumps({"%RETRY%reports": {BROKER: {"0": 2}}})}
    assert Query(Checkpoint(), given).run_until_idle() == [["0:2"]]
