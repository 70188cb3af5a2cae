"""The order of storing start offsets, which distinguishes interrupted storing from a grown topic."""

from __future__ import annotations

import random

from rmqd.consumer.offsets.start_offsets import in_storing_order, is_storing_unfinished
from rmqd.wire.message_queue import MessageQueue


def topic(name: str, **queues: int) -> list[MessageQueue]:
    """A topic's queues by broker."""
    return [MessageQueue(name, broker, number) for broker, count in queues.items() for number in range(count)]


def test_interrupted_storing_is_detected_at_every_step() -> None:
    for queues in [
        topic("t", a=4),
        topic("t", a=4, b=4),
        topic("t", a=2, b=8),
        topic("t", a=4) + topic("u", a=1),
        topic("t", a=3, b=1) + topic("u", b=2) + topic("v", a=1, b=1),
    ]:
        levels = in_storing_order(queues)
        assert sorted(queue for level in levels for queue in level) == sorted(queues)
        order = [queue for level in levels for queue in random.sample(level, len(level))]
        for stored in range(1, len(order)):
            assert is_storing_unfinished(queues, set(order[:stored])), order[:stored]


def test_a_grown_topic_does_not_count_as_interrupted_storing() -> None:
    for before, after in [
        (topic("t", a=1), topic("t", a=8)),
        (topic("t", a=4), topic("t", a=4, b=4)),
        (topic("t", b=4), topic("t", a=4, b=4)),
        (topic("t", a=4, b=4), topic("t", a=8, b=4)),
        (topic("t", a=4), topic("s", a=4) + topic("t", a=4) + topic("u", a=1)),
    ]:
        assert not is_storing_unfinished(after, set(before))
        assert not is_storing_unfinished(after, set(after))
        assert not is_storing_unfinished(after, set())
