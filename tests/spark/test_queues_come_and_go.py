"""Queues, topics and retries that come and go while a stream reads them; over an embedded broker, as Spark calls."""

from __future__ import annotations

import json
import time

import pytest
from structlog.testing import capture_logs

from tests.spark.embedded_broker import BROKER, EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

from tests.spark.micro_batches import Checkpoint, Killed, Query  # noqa: E402
from tests.spark.stream_options import grouped, numbers, options  # noqa: E402


def test_a_new_queue_is_read_from_its_first_message(broker: EmbeddedBroker) -> None:
    """Also where the query began at the end; a batch that died starts there again."""
    broker.fill("orders", 1, 3)
    checkpoint, more = Checkpoint(), options(broker, startingOffsets="latest")
    query = Query(checkpoint, more)
    query.poll()
    broker.create_topic("orders", 2)
    broker.send("orders", "1:0", "1:1", queue_id=1)
    with pytest.raises(Killed):
        query.poll(die_before_commit=True)
    assert json.loads(checkpoint.offsets[-1])["new"]["orders"][BROKER]["1"] == 0
    assert Query(checkpoint, more).run_until_idle() == [["1:0", "1:1"]]


def test_a_topic_that_is_gone_for_long_is_dropped(broker: EmbeddedBroker) -> None:
    """With the next batch, and also if the query was stopped meanwhile; what is read from it later is new."""
    broker.fill("orders", 1, 2)
    broker.fill("bills", 1, 2)
    checkpoint, both = Checkpoint(), {**options(broker), "subscribe": "orders,bills"}
    query = Query(checkpoint, {**both, "maxOffsetsPerTrigger": "2"})
    query.poll()
    broker.delete_topic("bills")
    with capture_logs() as logs:
        query.run_until_idle()
        assert not query.poll()
    (gone,) = [entry for entry in logs if entry["event"] == "spark.queue_gone"]
    assert (gone["queue"], gone["position"], gone["unread"]) == (f"bills@{BROKER}:0", 1, 1)
    since = json.loads(checkpoint.offsets[-1])["gone"]["bills"][BROKER]["0"]
    assert 0 <= time.time() * 1000 - since < 60_000

    broker.send("orders", "0:2")
    Query(checkpoint, both).run_until_idle()
    assert json.loads(checkpoint.offsets[-1])["gone"]["bills"][BROKER]["0"] == since
    broker.send("orders", "0:3")
    with capture_logs() as logs:
        Query(checkpoint, {**both, "queueRetention": "0ms"}).run_until_idle()
    assert [entry["queue"] for entry in logs if entry["event"] == "spark.queue_retired"] == [f"bills@{BROKER}:0"]
    assert json.loads(checkpoint.offsets[-1])["q"] == {"orders": {BROKER: {"0": 4}}}
    broker.fill("bills", 1, 1)
    assert Query(checkpoint, both).run_until_idle() == [["0:0"]]


def test_a_new_queue_starts_where_its_group_is(broker: EmbeddedBroker) -> None:
    """The group may have consumed it by other means."""
    broker.fill("orders", 1, 1)
    checkpoint = Checkpoint()
    Query(checkpoint, grouped(broker)).run_until_idle()
    broker.create_topic("orders", 4)
    for queue_id in (1, 2, 3):
        broker.send("orders", *numbers(queue_id, 0, 3), queue_id=queue_id)
    broker.commit("reports", "orders", {1: 2, 3: 9})
    assert Query(checkpoint, grouped(broker)).run_until_idle() == [["1:2", *numbers(2, 0, 3)]]
    assert broker.offsets("reports", "orders") == {0: 1, 1: 3, 2: 3, 3: 3}
