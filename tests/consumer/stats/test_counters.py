"""Counters: exact sums on the hot path, and retried messages under their own topics."""

from __future__ import annotations

import pytest

from rmqd.consumer.stats.counters import MAX_EXCEPTION_CLASSES, RetryTopicStats, TopicStats
from rmqd.consumer.stats.stats_snapshot import FLOW_CONTROL_REASONS, HANDLED_RESULTS
from rmqd.wire.message_queue import MessageQueue
from rmqd.wire.messages.properties import RETRY_TOPIC
from tests.consumer.blocks import block_of

RETRY = MessageQueue("%RETRY%g1", "a", 0)


def test_every_result_and_reason_exists_at_zero() -> None:
    """So that an alert on a rate sees the first increase."""
    snapshot = TopicStats("t1", is_retry=False).snapshot()
    assert snapshot.handled == dict.fromkeys(HANDLED_RESULTS, 0)
    assert snapshot.flow_control == dict.fromkeys(FLOW_CONTROL_REASONS, 0)


def test_durations_and_ages_of_quick_batches_are_added_up() -> None:
    """The snapshot includes batches that are counted ahead of the histograms."""
    stats = TopicStats("t1", is_retry=False)
    batch = block_of(range(3)).messages
    for seconds, age in [(0.0005, 0.02), (0.0001, 0.03), (0.2, 0.03), (0.0001, 700.0)]:
        stats.acknowledged(batch, seconds, age)
    stats.count_call(batch, 0.0003, 0.02)
    snapshot = stats.snapshot()
    assert snapshot.handled["acked"] == 12
    durations, ages = snapshot.handler_duration, snapshot.message_age
    assert durations.count == 5
    assert durations.sum == pytest.approx(0.2010)
    assert durations.counts[durations.bounds.index(0.001)] == 4
    assert durations.counts[durations.bounds.index(0.25)] == 1
    assert ages.count == 15
    assert ages.sum == pytest.approx(3 * (0.02 + 0.03 + 0.03 + 700 + 0.02))
    assert ages.counts[ages.bounds.index(0.05)] == 12
    assert ages.counts[ages.bounds.index(900)] == 3
    assert stats.snapshot() == snapshot, "a second snapshot counts nothing again"


@pytest.mark.parametrize("ages", [(30.0, 25.0, 20.0), (70.0, 40.0, 5.0), (0.02, 0.02, 0.02)])
def test_single_messages_are_counted_together_as_one_by_one(ages: tuple[float, ...]) -> None:
    """In the buckets of their ages, even if the oldest and the newest have different ones."""
    together, one_by_one = (TopicStats("t1", is_retry=False) for _ in range(2))
    messages = block_of(range(3)).messages
    for message, age in zip(messages, ages, strict=True):
        message.store_timestamp = round((1000 - age) * 1000)
    for _ in range(2):  # the second time, the bucket of the first is known
        together.count_acknowledged_singly(messages, 0.0006, 1000.0)
        for message, age in zip(messages, ages, strict=True):
            one_by_one.acknowledged([message], 0.0002, age)
    mine, theirs = together.snapshot(), one_by_one.snapshot()
    assert mine.handled == theirs.handled
    for name in ("message_age", "handler_duration"):
        assert getattr(mine, name).counts == getattr(theirs, name).counts
        assert getattr(mine, name).sum == pytest.approx(getattr(theirs, name).sum)


def test_exception_classes_are_bounded() -> None:
    """A handler that creates exception classes at run time must not create endless series."""
    stats = TopicStats("t1", is_retry=False)
    (first,) = block_of(range(1)).messages
    for number in range(MAX_EXCEPTION_CLASSES + 20):
        stats.count_exception(type(f"Error{number}", (Exception,), {})(), "", first, 0.0)
    stats.count_exception(type("Error0", (Exception,), {})(), "", first, 0.0)
    exceptions = stats.snapshot().exceptions
    assert len(exceptions) == MAX_EXCEPTION_CLASSES + 1
    assert exceptions["other"] == 20
    assert exceptions["Error0"] == 2


def test_retried_messages_count_under_their_own_topics() -> None:
    """Although they arrive in one topic and in one batch."""
    orders = block_of(range(2), RETRY, properties={RETRY_TOPIC: "orders"})
    bills = block_of(range(2, 3), RETRY, properties={RETRY_TOPIC: "bills"})
    stats = RetryTopicStats(RETRY.topic, ["orders", "bills"])
    for block in (orders, bills):
        stats.count_pulled(block)
    stats.acknowledged([*orders.messages, *bills.messages], 0.001, 5.0)
    stats.of(bills.messages[0]).count("retried")
    by_topic = {snapshot.topic: snapshot for snapshot in stats.snapshots()}
    assert by_topic.keys() == {"orders", "bills"}
    assert all(snapshot.is_retry for snapshot in by_topic.values())
    assert (by_topic["orders"].received, by_topic["bills"].received) == (2, 1)
    assert (by_topic["orders"].handled["acked"], by_topic["bills"].handled["acked"]) == (2, 1)
    assert by_topic["bills"].handled["retried"] == 1
    assert by_topic["orders"].message_age.count == 2
    stats.count_acknowledged_singly(orders.messages, 0.001, 5.0)
    assert [snapshot.handled["acked"] for snapshot in stats.snapshots()] == [4, 1]


def test_retries_of_a_topic_that_the_group_no_longer_consumes_are_counted() -> None:
    """They count under the retry topic's name."""
    stats = RetryTopicStats(RETRY.topic, ["orders", "bills"])
    stats.count_pulled(block_of(range(4), RETRY, properties={RETRY_TOPIC: "gone"}))
    assert [(s.topic, s.received) for s in stats.snapshots()] == [("orders", 0), ("bills", 0), (RETRY.topic, 4)]


def test_a_held_back_retry_queue_counts_for_the_topic_that_holds_it() -> None:
    """If nothing is cached, it counts for all topics."""
    stats = RetryTopicStats(RETRY.topic, ["orders", "bills"])
    stats.count_held_back("count", block_of([0], RETRY, properties={RETRY_TOPIC: "bills"}).messages[0])
    stats.count_held_back("paused", None)
    orders, bills = (snapshot.flow_control for snapshot in stats.snapshots())
    assert (orders["count"], bills["count"]) == (0, 1)
    assert (orders["paused"], bills["paused"]) == (1, 1)
