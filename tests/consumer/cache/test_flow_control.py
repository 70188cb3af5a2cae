"""The thresholds that hold back a queue's next pull."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from rmqd.consumer.cache.flow_control import Thresholds, count_flow_control, exceeded_threshold
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.stats.counters import TopicStats
from tests.consumer.blocks import QUEUE, block_of
from tests.consumer.groups import group_options

OFF = 1 << 30


def queue_with(offsets: list[int]) -> ProcessQueue:
    queue = ProcessQueue(QUEUE, 0, TopicStats(QUEUE.topic, is_retry=False))
    queue.put(block_of(offsets), offsets[-1] + 1)
    return queue


@pytest.mark.parametrize(("messages", "held"), [(10, None), (11, "count")])
def test_count(messages: int, held: str | None) -> None:
    """Strictly more than the threshold, as in Java."""
    assert exceeded_threshold(queue_with(list(range(messages))), Thresholds(10, OFF, OFF)) == held


def test_count_includes_messages_in_flight() -> None:
    queue = queue_with(list(range(11)))
    taken = queue.take(11)
    assert exceeded_threshold(queue, Thresholds(10, OFF, OFF)) == "count"
    queue.finish(taken[5:6])
    assert exceeded_threshold(queue, Thresholds(10, OFF, OFF)) is None


def test_size() -> None:
    """The size of the responses that are kept in memory."""
    queue = queue_with([0, 1])
    size = queue.cached_bytes
    assert exceeded_threshold(queue, Thresholds(OFF, size, OFF)) is None
    assert exceeded_threshold(queue, Thresholds(OFF, size - 1, OFF)) == "size"


@pytest.mark.parametrize(("last", "held"), [(100, None), (101, "span")])
def test_span(last: int, held: str | None) -> None:
    """The distance from the first unfinished to the last cached offset."""
    assert exceeded_threshold(queue_with([0, last]), Thresholds(OFF, OFF, 100)) == held


def test_span_shrinks_as_the_first_messages_finish() -> None:
    """Although their response is still kept."""
    queue = queue_with([0, 50, 120])
    assert exceeded_threshold(queue, Thresholds(OFF, OFF, 100)) == "span"
    queue.finish(queue.take(1))
    assert exceeded_threshold(queue, Thresholds(OFF, OFF, 100)) is None


def test_span_counts_finished_messages_behind_an_unfinished_one() -> None:
    """They are handled again if the process dies, and no other threshold limits them if no message waits."""
    queue = queue_with([0])
    queue.take(1)
    for start in (1, 51, 101):
        assert exceeded_threshold(queue, Thresholds(OFF, OFF, 100)) is None
        queue.put(block_of(range(start, start + 50), QUEUE), start + 50)
        queue.finish(queue.take(50))
    assert exceeded_threshold(queue, Thresholds(OFF, OFF, 100)) == "span"


def test_an_empty_queue_is_pulled() -> None:
    """Even with thresholds of 0."""
    queue = queue_with([500])
    queue.finish(queue.take(1))
    assert exceeded_threshold(queue, Thresholds(0, 0, 0)) is None


def test_topic_thresholds_are_divided_among_the_owned_queues() -> None:
    """As `RebalancePushImpl.messageQueueChanged`: at least 1, and not while no queue is owned."""
    for topic_count, topic_size, owned, expected in [
        (-1, -1, 4, (1000, 100 << 20)),
        (100, -1, 3, (33, 100 << 20)),
        (100, -1, 101, (1, 100 << 20)),
        (-1, 10 << 20, 4, (1000, (10 << 20) // 4)),
        (-1, 3, 4, (1000, 1)),
        (100, 100, 0, (1000, 100 << 20)),
    ]:
        options = group_options(pull_threshold_for_topic=topic_count, pull_threshold_size_for_topic_bytes=topic_size)
        thresholds = Thresholds.per_queue(options, owned)
        assert (thresholds.count, thresholds.size_bytes) == expected
        assert thresholds.span == options.consume_concurrently_max_span


def test_an_orderly_group_has_no_span_limit() -> None:
    """It handles messages without gaps, so a gap in the cache comes from the broker."""
    thresholds = Thresholds.per_queue(group_options(consume_mode="orderly"), 1)
    assert exceeded_threshold(queue_with([0, 2**40]), thresholds) is None


def test_a_queue_that_is_held_back_is_logged_at_the_first_of_a_thousand_times() -> None:
    """As in Java, and not while an operator pauses it."""
    queue, thresholds = queue_with([3, 4, 9]), Thresholds(2, OFF, OFF)
    with capture_logs() as logs:
        count_flow_control(queue, "paused", thresholds)
        for _ in range(1001):
            count_flow_control(queue, "count", thresholds)
    told: dict[str, object] = {"event": "queue.flow_controlled", "log_level": "warning", "queue": str(QUEUE)}
    told |= {"reason": "count", "threshold": 2, "min_offset": 3, "max_offset": 9, "count": 3}
    told["size_bytes"] = queue.cached_bytes
    assert logs == [told | {"times": 1}, told | {"times": 1001}]
