"""Queues and topics that are created or deleted while a stream reads them, over an embedded broker."""

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
    """The query may have started at the latest offset. A killed batch starts there again."""
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


def test_a_deleted_topic_is_dropped_after_queue_retention(broker: EmbeddedBroker) -> None:
    """The next batch drops it, even if the query was stopped in between. A recreated topic counts as new."""
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


def test_a_new_queue_starts_at_the_groups_offset(broker: EmbeddedBroker) -> None:
    """Another consumer of the group may have consumed the queue."""
    broker.fill("orders", 1, 1)
    checkpoint = Checkpoint()
    Query(checkpoint, grouped(broker)).run_until_idle()
    broker.create_topic("orders", 4)
    for queue_id in (1, 2, 3):
        broker.send("orders", *numbers(queue_id, 0, 3), queue_id=queue_id)
    broker.commit("reports", "orders", {1: 2, 3: 9})
    assert Query(checkpoint, grouped(broker)).run_until_idle() == [["1:2", *numbers(2, 0, 3)]]
    assert broker.offsets("reports", "orders") == {0: 1, 1: 3, 2: 3, 3: 3}
