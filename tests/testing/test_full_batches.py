"""`consume_message_batch_max_wait`: a handler receives a batch when it is full or its oldest message has waited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from rmqd import Batch
from rmqd.testing import RocketMQ, RunResult

Run = Callable[..., RunResult]
MODES = pytest.mark.parametrize("mode", ["concurrently", "orderly", "pop"])


def sizes_of(rocketmq: RocketMQ, run_handler: Run, **keys: Any) -> tuple[list[int], RunResult]:
    """Run a group, and return the sizes of its batches and the result."""
    sizes: list[int] = []

    async def handle(batch: Batch) -> None:
        sizes.append(len(batch))

    result = run_handler(handle, topic="orders", group="mailer", **keys)
    return sizes, result


@MODES
def test_messages_that_do_not_fill_a_batch_wait(rocketmq: RocketMQ, run_handler: Run, mode: str) -> None:
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
