"""What a group's query commits, and what it leaves alone for its driver to decide."""

from __future__ import annotations

import pytest

from rmqd.spark.handlers.group_source import WatchedOffsets
from rmqd.spark.source.source_options import parse_options
from tests.spark.embedded_broker import EmbeddedBroker, queue
from tests.spark.stream_options import grouped

GROUP = "reports"


@pytest.fixture
def offsets(broker: EmbeddedBroker) -> WatchedOffsets:
    """Of a group that has committed 3 in each of two queues of ten."""
    broker.fill("orders", 2, 10)
    offsets = WatchedOffsets(parse_options(grouped(broker)))
    offsets.pin({queue("orders", 0): 0, queue("orders", 1): 0})
    offsets.commit({queue("orders", 0): 3, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3}
    return offsets


def test_it_commits_what_is_done(broker: EmbeddedBroker, offsets: WatchedOffsets) -> None:
    offsets.commit({queue("orders", 0): 5, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 5, 1: 3}


@pytest.mark.parametrize("moved", [0, 2, 6, 10])
def test_what_somebody_has_set_stays(broker: EmbeddedBroker, offsets: WatchedOffsets, moved: int) -> None:
    """Back, or beyond the query; in the other queue it commits all the same."""
    broker.commit(GROUP, "orders", {0: moved})
    for done in (4, 5):
        offsets.commit({queue("orders", 0): done, queue("orders", 1): done})
        assert broker.offsets(GROUP, "orders") == {0: moved, 1: done}


def test_it_goes_on_once_the_driver_has_told_the_broker_again(broker: EmbeddedBroker, offsets: WatchedOffsets) -> None:
    """What it was told is as far as the query was meanwhile, or less."""
    broker.commit(GROUP, "orders", {0: 1})
    offsets.commit({queue("orders", 0): 6, queue("orders", 1): 3})
    broker.commit(GROUP, "orders", {0: 5})
    offsets.commit({queue("orders", 0): 8, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 8, 1: 3}


def test_a_broker_that_has_lost_the_group_is_told(broker: EmbeddedBroker, offsets: WatchedOffsets) -> None:
    broker.forget_group(GROUP)
    offsets.commit({queue("orders", 0): 4, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 4}


def test_a_new_queue_is_committed(broker: EmbeddedBroker, offsets: WatchedOffsets) -> None:
    broker.create_topic("orders", 3)
    offsets.commit({queue("orders", 0): 3, queue("orders", 1): 3, queue("orders", 2): 1})
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3, 2: 1}
