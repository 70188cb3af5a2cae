"""`consume_message_batch_max_wait`: a batch is handed over when it is full, or when its oldest message has waited.

The core of these tests is in tests/testing/test_full_batches.py.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from rmqd import Batch
from rmqd.errors import ConfigError
from rmqd.testing import RocketMQ
from tests.testing.test_full_batches import Run, sizes_of


def test_messages_waiting_for_a_full_batch_are_left_to_the_next_run(rocketmq: RocketMQ, run_handler: Run) -> None:
    """A stop does not wait for more messages, and loses none."""
    rocketmq.create_topic("orders")
    for _ in range(5):
        rocketmq.send("orders", "x")
    keys = {"consume_message_batch_max_size": 4, "consume_message_batch_max_wait": "60s"}
    seen: list[int] = []

    async def handle(batch: Batch) -> None:
        seen.append(len(batch))

    run_handler(handle, topic="orders", group="mailer", until=lambda: seen, **keys)
    assert (seen, rocketmq.offsets("mailer", "orders")) == ([4], {0: 4})
    run_handler(handle, topic="orders", group="mailer", **keys)
    assert seen == [4, 1]


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"consume_mode": "pop", "consume_message_batch_max_wait": "31s"}, "at most half of pop_invisible_time"),
        ({"engine": "spark", "consume_message_batch_max_wait": "1s"}, "not possible with engine: spark"),
        ({"order_by": "keys", "consume_message_batch_max_wait": "1s"}, "not possible with order_by"),
        ({"consume_message_batch_max_wait": "6m"}, "from 0s to 5m"),
    ],
)
def test_wrong_values_and_combinations_are_refused(run_handler: Run, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=f"consume_message_batch_max_wait: .*{re.escape(said)}"):
        run_handler(lambda batch: None, topic="orders", group="mailer", **keys)


def test_messages_that_arrive_one_by_one_are_batched(rocketmq: RocketMQ, run_handler: Run) -> None:
    """Delay levels 1 to 4 deliver after 1, 5, 10 and 30 s."""
    rocketmq.create_topic("orders")
    for level in (1, 2, 3, 4):
        rocketmq.send("orders", f"level {level}", delay_level=level)
    sizes, _ = sizes_of(rocketmq, run_handler, consume_message_batch_max_size=10, consume_message_batch_max_wait="15s")
    assert sizes == [3, 1]


def test_each_queue_has_its_own_batches(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders", queues=2)
    for number in range(8):
        rocketmq.send("orders", "x", queue_id=number % 2)
    sizes, _ = sizes_of(rocketmq, run_handler, consume_message_batch_max_size=4, consume_message_batch_max_wait="60s")
    assert sizes == [4, 4]
