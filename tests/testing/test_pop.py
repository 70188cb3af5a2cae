"""`run_handler` for a group in POP mode, whose retries take no real time."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable

from rmqd import Batch, Retry
from rmqd.testing import RocketMQ, RunResult

Run = Callable[..., RunResult]


def test_every_message_is_acknowledged_once(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders", queues=3)
    for number in range(50):
        rocketmq.send("orders", f"order {number}")
    bodies: Counter[bytes] = Counter()

    result = run_handler(
        lambda batch: bodies.update(message.body for message in batch),
        topic="orders",
        group="mailer",
        consume_mode="pop",
    )

    assert len(result.acked) == 50
    assert set(bodies.values()) == {1}
    assert sum(rocketmq.offsets("mailer", "orders").values()) == 50
    assert rocketmq.retries("mailer") == []


def test_failed_messages_are_redelivered_after_the_delays_of_pop(rocketmq: RocketMQ, run_handler: Run) -> None:
    """10 s, 30 s and a minute, as in Java's POP client. The broker's clock skips these delays."""
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "hard", keys="h")
    rocketmq.send("orders", "easy")
    times: list[float] = []

    def handle(batch: Batch) -> None:
        for message in batch:
            assert message.topic == "orders"
            if message.body == b"hard":
                times.append(rocketmq.now())
                if message.reconsume_times < 3:
                    raise Retry

    result = run_handler(handle, topic="orders", group="mailer", consume_mode="pop")

    assert [message.reconsume_times for message in rocketmq.retries("mailer")] == [1, 2, 3]
    assert len(result.acked) == 2
    assert [round(later - former) for former, later in itertools.pairwise(times)] == [10, 30, 60]
