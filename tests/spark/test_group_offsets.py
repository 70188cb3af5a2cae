"""The offsets that a stream commits for its group, and the offsets that it leaves to other consumers.

A query of `engine: spark` commits too. Its driver decides about offsets that the query did not commit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.spark.embedded_broker import BROKER, CONSUMER, EmbeddedBroker, queue
from tests.spark.needed import need

need("pyspark", "pyarrow")

from rmqd.spark.handlers.group_source import ResetSafeCommitter  # noqa: E402
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
    """The log entries of a test."""
    with capture_logs() as logs:
        yield logs


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check the members before every commit, and log every warning."""
    for name in ("MEMBER_CHECK_SECONDS", "WARNING_INTERVAL_SECONDS"):
        monkeypatch.setattr(f"rmqd.spark.source.group_offsets.{name}", 0.0)


def events(logs: list[Any], name: str) -> list[Any]:
    return [entry for entry in logs if entry["event"] == name]


@pytest.mark.parametrize("start", EXPLICIT)
def test_a_stream_with_an_explicit_start_commits_nothing(
    broker: EmbeddedBroker, start: dict[str, str], logs: list[Any]
) -> None:
    """It names the group of another consumer, only to look at its messages."""
    broker.fill("orders", 1, 5)
    broker.commit(GROUP, "orders", {0: 3})
    more = {**options(broker, groupId=GROUP), **start}
    if "startingTimestamp" in start:
        del more["startingOffsets"]
    assert len(Query(Checkpoint(), more).run_until_idle()[0]) == 5
    assert broker.offsets(GROUP, "orders") == {0: 3}
    assert len(events(logs, "spark.commits_disabled")) == 1


def test_a_groups_offset_never_goes_back(broker: EmbeddedBroker, logs: list[Any]) -> None:
    """If it is ahead of the stream, it stays until the stream has passed it, and a warning is logged."""
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


def test_two_streams_of_one_group_are_reported(broker: EmbeddedBroker, logs: list[Any]) -> None:
    """The stored offset is not the one that the stream committed. It stays at the offset of the faster stream."""
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


def test_nothing_is_committed_while_consumers_are_connected(broker: EmbeddedBroker, logs: list[Any]) -> None:
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
def offsets(broker: EmbeddedBroker) -> ResetSafeCommitter:
    """The committer of a group with the committed offset 3 in two queues of ten messages each."""
    broker.fill("orders", 2, 10)
    offsets = ResetSafeCommitter(parse_options(grouped(broker)))
    offsets.commit_start_offsets({queue("orders", 0): 0, queue("orders", 1): 0})
    offsets.commit({queue("orders", 0): 3, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3}
    return offsets


def test_finished_offsets_are_committed(broker: EmbeddedBroker, offsets: ResetSafeCommitter) -> None:
    offsets.commit({queue("orders", 0): 5, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 5, 1: 3}


@pytest.mark.parametrize("moved", [0, 2, 6, 10])
def test_an_offset_set_by_others_stays(broker: EmbeddedBroker, offsets: ResetSafeCommitter, moved: int) -> None:
    """It may be before or beyond the query's offset. The other queue is committed anyway."""
    broker.commit(GROUP, "orders", {0: moved})
    for done in (4, 5):
        offsets.commit({queue("orders", 0): done, queue("orders", 1): done})
        assert broker.offsets(GROUP, "orders") == {0: moved, 1: done}


def test_commits_continue_after_the_driver_has_repeated_its_commit(
    broker: EmbeddedBroker, offsets: ResetSafeCommitter
) -> None:
    """The driver's commit is at the query's offset, or before it."""
    broker.commit(GROUP, "orders", {0: 1})
    offsets.commit({queue("orders", 0): 6, queue("orders", 1): 3})
    broker.commit(GROUP, "orders", {0: 5})
    offsets.commit({queue("orders", 0): 8, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 8, 1: 3}


def test_a_broker_that_lost_the_group_gets_commits(broker: EmbeddedBroker, offsets: ResetSafeCommitter) -> None:
    broker.forget_group(GROUP)
    offsets.commit({queue("orders", 0): 4, queue("orders", 1): 3})
    assert broker.offsets(GROUP, "orders") == {0: 4}


def test_a_new_queue_is_committed(broker: EmbeddedBroker, offsets: ResetSafeCommitter) -> None:
    broker.create_topic("orders", 3)
    offsets.commit({queue("orders", 0): 3, queue("orders", 1): 3, queue("orders", 2): 1})
    assert broker.offsets(GROUP, "orders") == {0: 3, 1: 3, 2: 1}
