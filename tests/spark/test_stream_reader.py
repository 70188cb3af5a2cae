"""Streams over an embedded broker, called in the order in which Spark calls them."""

from __future__ import annotations

import itertools
import json

import pytest
import structlog.testing

from rmqd.errors import DataLossError
from tests.spark.embedded_broker import BROKER, EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark.sql.streaming.datasource import ReadMaxRows  # noqa: E402

from tests.spark.micro_batches import Checkpoint, Killed, Query  # noqa: E402
from tests.spark.stream_options import grouped, numbers, options  # noqa: E402


def test_a_backlog_and_later_messages_are_read(broker: EmbeddedBroker) -> None:
    """Each message is in one batch. Without new messages there is no batch."""
    broker.fill("orders", 2, 3)
    query = Query(Checkpoint(), options(broker))
    assert query.run_until_idle() == [numbers(0, 0, 3) + numbers(1, 0, 3)]
    broker.send("orders", "1:3", queue_id=1)
    assert query.run_until_idle()[1:] == [["1:3"]]


def test_a_stream_starts_at_the_end_by_default(broker: EmbeddedBroker) -> None:
    """The end at the first call counts. Spark calls `initialOffset` again before the first batch is read."""
    broker.fill("orders", 1, 3)
    more = options(broker)
    del more["startingOffsets"]
    query = Query(Checkpoint(), more)
    before = query.reader.initialOffset()
    broker.send("orders", "0:3", "0:4")
    assert query.reader.initialOffset() == before
    assert query.run_until_idle() == [["0:3", "0:4"]]


def test_a_killed_batch_is_repeated_exactly(broker: EmbeddedBroker) -> None:
    """More messages, or another limit, do not change it."""
    broker.fill("orders", 2, 10)
    checkpoint = Checkpoint()
    query = Query(checkpoint, options(broker, maxOffsetsPerTrigger="6"))
    query.poll()
    with pytest.raises(Killed):
        query.poll(die_before_commit=True)
    broker.send("orders", "0:10")
    again = Query(checkpoint, options(broker))
    again.run_until_idle()
    assert again.rows[0] == query.rows[1]
    assert again.ranges[0] == query.ranges[1]
    assert sorted(itertools.chain(query.rows[0], *again.rows)) == sorted(numbers(0, 0, 11) + numbers(1, 0, 10))


def test_a_batch_has_no_more_rows_than_the_limit(broker: EmbeddedBroker) -> None:
    """The limit is divided in proportion to the backlog."""
    broker.fill("orders", 2, 10)
    broker.send("orders", *numbers(1, 10, 30), queue_id=1)
    query = Query(Checkpoint(), options(broker, maxOffsetsPerTrigger="8"))
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(8)
    query.poll()
    assert query.rows == [numbers(0, 0, 2) + numbers(1, 0, 6)]
    assert [len(batch) for batch in query.run_until_idle()] == [8, 8, 8, 8, 8]


def test_an_available_now_query_ends_at_the_offsets_of_its_start(broker: EmbeddedBroker) -> None:
    """The limit applies to each batch. Later messages and new queues are left to the next run."""
    broker.fill("orders", 1, 5)
    checkpoint = Checkpoint()
    query = Query(checkpoint, options(broker, maxOffsetsPerTrigger="2"), available_now=True)
    broker.send("orders", "0:5")
    broker.create_topic("orders", 2)
    broker.send("orders", "1:0", queue_id=1)
    assert query.run_until_idle() == [["0:0", "0:1"], ["0:2", "0:3"], ["0:4"]]
    assert Query(checkpoint, options(broker), available_now=True).run_until_idle() == [["0:5", "1:0"]]


def test_the_group_has_no_lag_once_the_query_is_idle(broker: EmbeddedBroker) -> None:
    """Spark never commits the last batch, so the poll after it does."""
    broker.fill("orders", 2, 5)
    query = Query(Checkpoint(), grouped(broker))
    query.poll()
    assert broker.offsets("reports", "orders") == {0: 0, 1: 0}
    assert not query.poll()
    assert broker.offsets("reports", "orders") == {0: 5, 1: 5}


def test_the_group_is_never_ahead_of_the_checkpoint(broker: EmbeddedBroker) -> None:
    """A killed batch is not committed."""
    broker.fill("orders", 1, 6)
    checkpoint = Checkpoint()
    query = Query(checkpoint, grouped(broker, maxOffsetsPerTrigger="2"))
    query.poll()
    with pytest.raises(Killed):
        query.poll(die_before_commit=True)
    assert broker.offsets("reports", "orders") == {0: 2}
    Query(checkpoint, grouped(broker)).run_until_idle()
    assert broker.offsets("reports", "orders") == {0: 6}


def test_a_query_starts_at_the_groups_offsets_and_commits_its_start(broker: EmbeddedBroker) -> None:
    """If it dies before its first batch, the next query starts at the same offsets."""
    broker.fill("orders", 2, 5)
    broker.commit("reports", "orders", {0: 3})
    more = grouped(broker, startingOffsetsFallback="latest")
    assert Query(Checkpoint(), more).reader.initialOffset()["q"] == {"orders": {BROKER: {"0": 3, "1": 5}}}
    assert broker.offsets("reports", "orders") == {0: 3, 1: 5}
    broker.send("orders", "1:5", queue_id=1)
    assert Query(Checkpoint(), more).run_until_idle() == [["0:3", "0:4", "1:5"]]


def test_an_idle_query_commits_nothing(broker: EmbeddedBroker) -> None:
    """An offset that an operator sets stays until the query has read more."""
    broker.fill("orders", 1, 5)
    query = Query(Checkpoint(), grouped(broker))
    query.run_until_idle()
    broker.commit("reports", "orders", {0: 2})
    assert not query.poll()
    assert broker.offsets("reports", "orders") == {0: 2}
    broker.send("orders", "0:5")
    query.run_until_idle()
    assert broker.offsets("reports", "orders") == {0: 6}


def test_a_query_tolerates_an_unreachable_broker(broker: EmbeddedBroker) -> None:
    """The query is idle meanwhile, and continues afterwards."""
    broker.fill("orders", 1, 2)
    query = Query(Checkpoint(), grouped(broker, unavailableToleranceMs="60000"))
    query.run_until_idle()
    broker.stop()
    assert not query.poll()
    broker.start()
    broker.send("orders", "0:2")
    while not query.poll():
        pass
    assert query.rows[1:] == [["0:2"]]


def test_a_recreated_topic_is_a_data_loss(broker: EmbeddedBroker) -> None:
    """Its offsets start again. Without failOnDataLoss the query continues with its first message."""
    broker.fill("orders", 1, 5)
    checkpoint = Checkpoint()
    Query(checkpoint, options(broker)).run_until_idle()
    broker.delete_topic("orders")
    broker.fill("orders", 1, 2)
    with pytest.raises(DataLossError, match="offsets 2 to 4 are missing: the broker has 0 to 1"):
        Query(checkpoint, options(broker)).poll()
    query = Query(checkpoint, options(broker, failOnDataLoss="false"))
    with structlog.testing.capture_logs() as logs:
        assert query.run_until_idle() == [["0:0", "0:1"]]
    (told,) = [entry for entry in logs if entry["event"] == "spark.queue_went_back"]
    assert (told["position"], told["ends_at"], told["goes_on_at"]) == (5, 2, 0)
    broker.send("orders", "0:2")
    assert query.run_until_idle()[1:] == [["0:2"]]


@pytest.mark.parametrize("more", [5, 12])
def test_a_recreated_topic_with_as_many_messages_is_a_data_loss(broker: EmbeddedBroker, more: int) -> None:
    """Other messages have the offsets that were read. The checkpoint distinguishes them."""
    broker.fill("orders", 1, 5)
    checkpoint = Checkpoint()
    Query(checkpoint, options(broker), available_now=True).run_until_idle()
    broker.delete_topic("orders")
    broker.fill("orders", 1, more)
    with pytest.raises(DataLossError, match="the broker has other messages there, because the topic was recreated"):
        Query(checkpoint, options(broker)).poll()
    query = Query(checkpoint, options(broker, failOnDataLoss="false"))
    assert query.run_until_idle() == [numbers(0, 0, more)]


def test_a_query_continues_at_the_end_of_a_broker_that_lost_messages(broker: EmbeddedBroker) -> None:
    """The marked message still exists, so the messages before it are not read again."""
    broker.fill("orders", 1, 5)
    query = Query(Checkpoint(), options(broker, failOnDataLoss="false"))
    query.run_until_idle()
    begin = json.loads(query.checkpoint.offsets[-1])
    begin["q"]["orders"][BROKER]["0"] = 9
    end = query.reader.latestOffset(begin, query.reader.getDefaultReadLimit())
    assert end["q"] == {"orders": {BROKER: {"0": 5}}}
    assert "new" not in end
