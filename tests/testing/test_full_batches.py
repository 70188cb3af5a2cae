"""`consume_message_batch_max_wait`: a batch is handed over when it is full, or when its oldest message has waited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqd import Batch
from rmqd.testing import RocketMQ, RunResult

Run = Callable[..., RunResult]
MODES = pytest.mark.parametrize("mode", ["concurrently", "orderly", "pop"])


def sizes_of(rocketmq: RocketMQ, run_handler: Run, **keys: Any) -> tuple[list[int], RunResult]:
    """The sizes of a group's batches."""
    sizes: list[int] = []

    async def handle(batch: Batch) -> None:
        sizes.append(len(batch))

    result = run_handler(handle, topic="orders", group="mailer", **keys)
    return sizes, result


@MODES
def test_what_does_not_fill_a_batch_waits(rocketmq: RocketMQ, run_handler: Run, mode: str) -> None:
    rocketmq.create_topic("orders")
    for number in range(23):
        rocketmq.send("orders", f"order {number}")
    sizes, result = sizes_of(
        rocketmq,
        run_handler,
        consume_mode=mode,
        consume_message_batch_max_size=10,
        consume_message_batch_max_wait="20s",
    )
    assert sizes == [10, 10, 3]
    assert [attempt.outcome for attempt in result.attempts] == ["acked"] * 23
    assert result.elapsed_seconds >= 20
    assert rocketmq.offsets("mailer", "orders") == {0: 23} or mode == "pop"


def test_messages_that_come_one_by_one_are_gathered(rocketmq: RocketMQ, run_handler: Run) -> None:
    """Delay levels 1 to 4: after 1, 5, 10 and 30 s."""
    rocketmq.create_topic("orders")
    for level in (1, 2, 3, 4):
        rocketmq.send("orders", f"level {level}", delay_level=level)
    sizes, _ = sizes_of(rocketmq, run_handler, consume_message_batch_max_size=10, consume_message_batch_max_wait="15s")
    assert sizes == [3, 1]


def test_queues_gather_for_themselves(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders", queues=2)
    for number in range(8):
        rocketmq.send("orders", "x", queue_id=number % 2)
    sizes, _ = sizes_of(rocketmq, run_handler, consume_message_batch_max_size=4, consume_message_batch_max_wait="60s")
    assert sizes == [4, 4]
