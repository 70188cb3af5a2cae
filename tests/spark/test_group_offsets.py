"""What a stream commits for the group that it names, and what it leaves to those whose group it is.

A query of `engine: spark` commits, too, and leaves what is not its own for its driver to decide.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.spark.embedded_broker import BROKER, CONSUMER, EmbeddedBroker, queue
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.handlers.group_source import UnmovedOffsetCommitter  # noqa: E402
from rmqd.spark.source.source_options import parse_options  # noqa: E402
from tests.spark.micro_batches import Checkpoint, Query  # noqa: E402
from tests.spark.stream_options import grouped, options  # noqa: E402

GROUP = "reports"
QUEUE = f"orders@{BROKER}:0"
EXPLICIT = [
    {"startingOffsets": "earliest"},
    {"startingOffsets": '{"orders": {"broker-a": {"0": 0}}}'},
    {"startingTimestamp": "0"},
]


@pytest.fixture
def logs() -> Iterator[list[Any]]:
    """What is logged in a test."""
    with capture_logs() as logs:
        yield logs


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Members are looked at whenever something is to be committed, and all is told each time."""
    for name in ("MEMBER_CHECK_SECONDS", "WARNING_INTERVAL_SECONDS"):
        monkeypatch.setattr(f"rmqd.spark.source.group_offsets.{name}", 0.0)


def events(logs: list[Any], name: str) -> list[Any]:
    return [entry for entry in logs if entry["event"] == name]


@pytest.mark.parametrize("start", EXPLICIT)
def test_a_stream_that_says_where_to_start_commits_nothing(
    broker: EmbeddedBroker, start: dict[str, str], logs: list[Any]
) -> None:
    """It names a group to look at what another one consumes."""
    broker.fill("orders", 1, 5)
    broker.commit(GROUP, "orders", {0: 3})
    more = {**options(broker, groupId=GROUP), **start}
    if "startingTimestamp" in start:
        del more["startingOffsets"]
    assert len(Query(Checkpoint(), more).run_until_idle()[0]) == 5
    assert broker.offsets(GROUP, "orders") == {0: 3}
    assert len(events(logs, "spark.commits_disabled")) == 1


def test_a_groups_offset_never_goes_back(broker: EmbeddedBroker, logs: list[Any]) -> None:
    """Where it is ahead of the stream it stays until the stream is there, which is told."""
    broker.fill("orders", 1, 6)
    broker.commit(GROUP, "orders", {0: 5})
    asked = {"commitOffsets": "true", "maxOffsetsPerTrigger": "2"}
    query = Query(Checkpoint(), options(broker, groupId=GROUP, **asked))
    for offset in (5, 5, 6):
        query.poll()
        query.reader.commit({"v": 1, "q": {"orders": {BROKER: {"0": 2 * len(query.rows)}}}})
        assert broker.offsets(GROUP, "orders") == {0: offset}
    told = events(logs, "spark.checkpoint_overtaken")[0]
    assert (told["group"], told["committed"], told["query"]) == (GROUP, {QUEUE: 5}, {QUEUE: 0})


def test_two_streams_of_a_group_are_told_of_each_other(broker: EmbeddedBroker, logs: list[Any]) -> None:
    """What is stored is not what was stored; the offset is where the farther one is."""
    broker.fill("orders", 1, 9)
    slow = Query(Checkpoint(), grouped(broker, maxOffsetsPerTrigger="1"))
    slow.poll()
    slow.poll()
    Query(Checkpoint(), grouped(broker)).run_until_idle()
    assert broker.offsets(GROUP, "orders") == {0: 9}
    slow.poll()
    assert broker.offsets(GROUP, "orders") == {0: 9}
    told = events(logs, "spark.group_moved_by_others")[-1]
    assert (told["group"], told["committed"], told["stored"]) == (GROUP, {QUEUE: 9}, {QUEUE: 1})
    assert "commitOffsets=false" in told["action"]


def test_a_group_that_consumers_are_connected_in_is_theirs(broker: EmbeddedBroker, logs: list[Any]) -> None:
    """Until they leave."""
    broker.fill("orders", 1, 5)
    broker.commit(GROUP, "orders", {0: 1})
    broker.connect_consumer(GROUP)
    query = Query(Checkpoint(), grouped(broker))
    assert query.run_until_idle() == [[f"0:{number}" for number in range(1, 5)]]
    assert broker.offsets(GROUP, "orders") == {0: 1}
    assert events(logs, "spark.group_in_use")[0]["members"] == [CONSUMER]
    broker.disconnect_consumer(GROUP)
    query.poll()
    assert broker.offsets(GROUP, "orders") == {0: 5}


@pytest.fixture
def offsets(broker: EmbeddedBroker) -> UnmovedOffsetCommitter:
    """Of a group that has committed 3 in each of two queues of ten."""
    broker.fill("orders", 2, 10)
    offsets = UnmovedOffsetCommitter(parse_options(grouped(broker)))
    offsets.commit_start_offsets({queue("orders", 0): 0, queue("orders", 1): 0})
    offsets.commit({queue("orders", 0): 3, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3}
    return offsets


def test_it_commits_what_is_done(broker: EmbeddedBroker, offsets: UnmovedOffsetCommitter) -> None:
    offsets.commit({queue("orders", 0): 5, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 5, 1: 3}


@pytest.mark.parametrize("moved", [0, 2, 6, 10])
def test_what_somebody_has_set_stays(broker: EmbeddedBroker, offsets: UnmovedOffsetCommitter, moved: int) -> None:
    """Back, or beyond the query; in the other queue it commits all the same."""
    broker.commit(GROUP, "orders", {0: moved})
    for done in (4, 5):
        offsets.commit({queue("orders", 0): done, queue("orders", 1): done})
        assert broker.offsets(GROUP, "orders") == {0: moved, 1: done}


def test_it_goes_on_once_the_driver_has_told_the_broker_again(
    broker: EmbeddedBroker, offsets: UnmovedOffsetCommitter
) -> None:
    """What it was told is as far as the query was meanwhile, or less."""
    broker.commit(GROUP, "orders", {0: 1})
    offsets.commit({queue("orders", 0): 6, queue("orders", 1): 3})
    broker.commit(GROUP, "orders", {0: 5})
    offsets.commit({queue("orders", 0): 8, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 8, 1: 3}


def test_a_broker_that_has_lost_the_group_is_told(broker: EmbeddedBroker, offsets: UnmovedOffsetCommitter) -> None:
    broker.forget_group(GROUP)
    offsets.commit({queue("orders", 0): 4, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 4}


def test_a_new_queue_is_committed(broker: EmbeddedBroker, offsets: UnmovedOffsetCommitter) -> None:
    broker.create_topic("orders", 3)
    offsets.commit({queue("orders", 0): 3, queue("orders", 1): 3, queue("orders", 2): 1})
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3, 2: 1}
