"""The offsets that a stream commits for its group, and the offsets that it leaves to the group's members."""

from __future__ import annotations

from tests.spark.embedded_broker import EmbeddedBroker
from tests.spark.needed import need

need("pyspark", "pyarrow")

import pytest  # noqa: E402

from rmqd.spark.session.spark_cluster import close_clusters  # noqa: E402
from tests.spark.micro_batches import Checkpoint, Query  # noqa: E402
from tests.spark.stream_options import grouped  # noqa: E402
from tests.spark.test_group_offsets import (  # noqa: E402
    GROUP,
)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the members at each commit, and log each warning."""
    for name in ("MEMBER_CHECK_SECONDS", "WARNING_INTERVAL_SECONDS"):
        monkeypatch.setattr(f"rmqd.spark.source.group_offsets.{name}", 0.0)


def test_a_missing_topic_does_not_block_commits_of_other_topics(broker: EmbeddedBroker) -> None:
    """The query starts without it, in another process."""
    broker.fill("orders", 1, 2)
    broker.fill("bills", 1, 2)
    checkpoint, both = Checkpoint(), {**grouped(broker), "subscribe": "orders,bills"}
    Query(checkpoint, both).run_until_idle()
    broker.delete_topic("bills")
    broker.send("orders", "0:2")
    close_clusters()
    Query(checkpoint, both).run_until_idle()
    assert broker.offsets(GROUP, "orders") == {0: 3}


def test_a_recreated_topic_has_its_own_offsets(broker: EmbeddedBroker) -> None:
    """An offset beyond its end is not used."""
    broker.fill("orders", 1, 5)
    checkpoint, more = Checkpoint(), grouped(broker, failOnDataLoss="false")
    Query(checkpoint, more).run_until_idle()
    broker.delete_topic("orders")
    broker.fill("orders", 1, 2)
    broker.commit(GROUP, "orders", {0: 5})
    Query(checkpoint, more).run_until_idle()
    assert broker.offsets(GROUP, "orders") == {0: 2}
