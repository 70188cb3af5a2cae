"""Streams over an embedded broker, called in the order in which Spark calls them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rmqd.errors import RmqdError
from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes  # noqa: E402

from tests.spark.micro_batches import Checkpoint, Killed, Query  # noqa: E402
from tests.spark.stream_options import grouped, numbers, options, place  # noqa: E402


def test_a_poll_finds_messages_that_were_sent_before_it(broker: EmbeddedBroker) -> None:
    """The queues' ends were queried a moment ago, but `processAllAvailable` waits for this poll."""
    broker.fill("orders", 1, 3)
    query = Query(Checkpoint(), {**options(broker), "fetchOffset.intervalMs": "300"})
    query.run_until_idle()
    broker.send("orders", "0:3")
    assert query.poll()
    assert query.rows[1:] == [["0:3"]]


def test_a_failed_first_batch_is_read_again_with_the_same_offsets(broker: EmbeddedBroker) -> None:
    """Spark asks a new process for the start again, and "latest" has changed by then."""
    broker.fill("orders", 1, 3)
    more, checkpoint = options(broker, startingOffsets="latest"), Checkpoint()
    query = Query(checkpoint, more)
    query.reader.initialOffset()
    broker.send("orders", "0:3", "0:4")
    with pytest.raises(Killed):
        query.poll(die_before_commit=True)
    broker.send("orders", "0:5")
    assert Query(checkpoint, more).run_until_idle() == [["0:3", "0:4"], ["0:5"]]


def test_the_size_of_a_batch_is_limited_in_bytes(broker: EmbeddedBroker) -> None:
    """The sizes are in the broker's index. Here a message has some 200 bytes in addition to its body."""
    broker.create_topic("orders", 1)
    broker.send("orders", *(f"{number}".ljust(4000, ".") for number in range(40)))
    query = Query(Checkpoint(), options(broker, maxBytesPerTrigger="44000"))
    assert query.reader.getDefaultReadLimit() == ReadMaxBytes(44000)
    assert [len(batch) for batch in query.run_until_idle()] == [10, 10, 10, 10]
    broker.send("orders", "x".ljust(60_000, "."))
    assert [len(batch) for batch in query.run_until_idle()[4:]] == [1]


def test_a_batch_waits_for_its_minimum_number_of_rows(broker: EmbeddedBroker) -> None:
    """`maxTriggerDelay` ends the wait."""
    broker.fill("orders", 1, 3)
    waiting = Query(Checkpoint(), options(broker, minOffsetsPerTrigger="4"))
    assert waiting.run_until_idle() == [[]]
    broker.send("orders", "0:3")
    assert waiting.run_until_idle()[1:] == [numbers(0, 0, 4)]
    impatient = Query(Checkpoint(), options(broker, minOffsetsPerTrigger="99", maxTriggerDelay="0s"))
    assert impatient.run_until_idle() == [numbers(0, 0, 4)]


def test_a_trigger_that_reads_everything_ignores_the_limits(broker: EmbeddedBroker) -> None:
    """In Spark this is Trigger.Once."""
    broker.fill("orders", 1, 30)
    query = Query(Checkpoint(), options(broker, maxOffsetsPerTrigger="3", minOffsetsPerTrigger="2"))
    start = query.reader.initialOffset()
    assert place(json.dumps(query.reader.latestOffset(start, ReadAllAvailable()))) == {"0": 30}


def test_available_now_may_read_nothing(broker: EmbeddedBroker) -> None:
    """Spark asks for the start after the end was recorded. Messages that arrived in between are for the next run."""
    broker.fill("orders", 1, 2)
    checkpoint, more = Checkpoint(), options(broker, startingOffsets="latest")
    query = Query(checkpoint, more, available_now=True)
    broker.send("orders", "0:2")
    assert query.run_until_idle() == [[]]
    broker.send("orders", "0:3")
    assert Query(checkpoint, more, available_now=True).run_until_idle() == [["0:3"]]


def test_available_now_does_not_end_while_the_broker_is_unreachable(broker: EmbeddedBroker) -> None:
    """A poll without new messages would end the query, with messages unread."""
    broker.fill("orders", 1, 6)
    checkpoint = Checkpoint()
    tolerant = {"unavailableToleranceMs": "300"}  # without it no unreachable broker is tolerated, whatever the trigger
    more = options(broker, subscribePattern="orders", maxOffsetsPerTrigger="2", **tolerant)
    query = Query(checkpoint, more, available_now=True)
    query.poll()
    broker.stop()
    with pytest.raises(RmqdError):
        query.poll()
    broker.start()
    more["unavailableToleranceMs"] = "20000"  # a client pauses after a failed connect
    assert Query(checkpoint, more, available_now=True).run_until_idle() == [numbers(0, 2, 4), numbers(0, 4, 6)]


def test_a_group_without_commits_keeps_its_offsets(broker: EmbeddedBroker) -> None:
    """The option is commitOffsets=false."""
    broker.fill("orders", 1, 5)
    assert Query(Checkpoint(), grouped(broker, commitOffsets="false")).run_until_idle() == [numbers(0, 0, 5)]
    assert broker.offsets("reports", "orders") == {}


def test_the_lag_is_in_the_progress(broker: EmbeddedBroker) -> None:
    """Spark shows it as latestOffset."""
    broker.fill("orders", 1, 5)
    query = Query(Checkpoint(), options(broker, maxOffsetsPerTrigger="2"))
    query.poll()
    report = query.reader.reportLatestOffset()
    assert (place(query.checkpoint.offsets[-1]), place(json.dumps(report))) == ({"0": 2}, {"0": 5})


def test_a_drain_file_holds_the_query(broker: EmbeddedBroker, tmp_path: Any) -> None:
    """No new messages are found while it exists."""
    broker.fill("orders", 1, 2)
    query = Query(Checkpoint(), options(broker, drainFile=str(tmp_path / "drain")))
    query.run_until_idle()
    (tmp_path / "drain").touch()
    broker.send("orders", "0:2")
    assert query.run_until_idle() == [numbers(0, 0, 2)]
    (tmp_path / "drain").unlink()
    assert query.run_until_idle()[1:] == [["0:2"]]


def test_an_unreachable_broker_fails_the_query(broker: EmbeddedBroker) -> None:
    """The option gives the time to wait."""
    broker.fill("orders", 1, 2)
    query = Query(Checkpoint(), options(broker))
    query.run_until_idle()
    broker.stop()
    with pytest.raises(RmqdError, match="refused"):
        query.poll()
