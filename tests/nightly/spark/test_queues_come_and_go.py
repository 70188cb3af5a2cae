"""Queues, topics and retries that come and go while a stream reads them; over an embedded broker, as Spark calls."""

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
    """Where a pattern takes it."""
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


def test_a_condition_is_checked_with_every_queue_that_comes(broker: EmbeddedBroker) -> None:
    """A pull would take one that the broker cannot read for "everything"; so too after a restart."""
    broker.fill("orders", 1, 2)
    checkpoint = Checkpoint()
    query = Query(checkpoint, options(broker, sql="n > 1"))
    assert query.run_until_idle() == [[]]
    broker.create_topic("orders", 2)
    broker.send("orders", "1:0", queue_id=1, properties={"n": "2"})
    assert query.run_until_idle()[1:] == [["1:0"]]
    with pytest.raises(FilterRefusedError, match="refuses the SQL filter"):
        Query(checkpoint, options(broker, sql="n >>> 1")).poll()


def test_a_topic_that_goes_keeps_its_place(broker: EmbeddedBroker) -> None:
    """The others go on."""
    broker.fill("orders", 1, 2)
    broker.fill("bills", 1, 2)
    query = Query(Checkpoint(), {**options(broker), "subscribe": "orders,bills"})
    query.run_until_idle()
    broker.delete_topic("bills")
    broker.send("orders", "0:2")
    assert query.run_until_idle()[1:] == [["0:2"]]
    assert json.loads(query.checkpoint.offsets[-1])["q"]["bills"] == {BROKER: {"0": 2}}


def test_a_topic_that_went_with_what_was_to_be_read_is_a_loss(broker: EmbeddedBroker) -> None:
    """It is in the checkpoint, and nobody has it; without failOnDataLoss the others go on."""
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
        "data loss in bills@broker-a:0: offsets 1 to 4 are missing: no name server knows its broker anymore"
    )
    with capture_logs() as logs:
        assert Query(checkpoint, {**both, "failOnDataLoss": "false"}).run_until_idle() == [["0:2"]]
    assert [entry["skipped"] for entry in logs if entry["event"] == "spark.data_lost"] == [4]


def test_a_topic_that_comes_back_is_read_on(broker: EmbeddedBroker) -> None:
    """Its place was kept."""
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


def test_a_topic_that_may_be_read_again_is_read_on(broker: EmbeddedBroker) -> None:
    """Within one run; meanwhile it was as good as gone."""
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


def test_a_queue_that_is_to_be_read_only_is_drained(broker: EmbeddedBroker) -> None:
    """An operator takes a broker out of service so."""
    broker.fill("orders", 2, 3)
    broker.create_topic("orders", 2, permission=4)
    query = Query(Checkpoint(), options(broker))
    assert query.run_until_idle() == [numbers(0, 0, 3) + numbers(1, 0, 3)]
    assert "gone" not in json.loads(query.checkpoint.offsets[-1])


def test_retries_are_read_from_their_first_one(broker: EmbeddedBroker) -> None:
    """Though the retry topic was not there when the query began."""
    broker.fill("orders", 1, 1)
    query = Query(Checkpoint(), grouped(broker, includeRetryTopic="true", tags="paid"))
    with capture_logs() as logs:
        assert query.run_until_idle() == [[]]
    assert not [entry for entry in logs if entry["log_level"] not in ("info", "debug")]
    broker.create_topic("%RETRY%reports", 1)
    broker.send("%RETRY%reports", "again")
    assert query.run_until_idle()[1:] == [["again"]]
    assert broker.offsets("reports", "%RETRY%reports") == {0: 1}


def test_a_groups_retries_are_no_part_of_where_its_topics_start(broker: EmbeddedBroker) -> None:
    """Unless their offsets are given too."""
    broker.fill("orders", 1, 3)
    broker.fill("%RETRY%reports", 1, 3)
    more = grouped(broker, includeRetryTopic="true", startingOffsetsFallback="latest", commitOffsets="false")
    assert Query(Checkpoint(), more).run_until_idle() == [numbers(0, 0, 3)]
    given = {**more, "startingOffsets": json.dumps({"%RETRY%reports": {BROKER: {"0": 2}}})}
    assert Query(Checkpoint(), given).run_until_idle() == [["0:2"]]
