"""`run_handler` for a group that pops: retries by invisible time, without waiting for it.

The core of these tests is in tests/testing/test_pop.py.
"""

from __future__ import annotations

import pytest

from rmqd import Batch
from rmqd.testing import RocketMQ
from tests.testing.test_pop import Run


def test_a_message_that_fails_too_often_is_dead_lettered(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "poison")
    calls = 0

    def handle(batch: Batch) -> None:
        nonlocal calls
        calls += 1
        raise ValueError("always")

    run_handler(handle, topic="orders", group="mailer", consume_mode="pop", max_reconsume_times=2)

    assert calls == 3
    (dead,) = rocketmq.dead_letters("mailer")
    assert dead.body == b"poison"


@pytest.mark.parametrize("second", ["pop", "concurrently"])
def test_a_second_run_continues_where_the_first_ended(rocketmq: RocketMQ, run_handler: Run, second: str) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "one")
    run_handler(lambda batch: None, topic="orders", group="mailer", consume_mode="pop")
    rocketmq.send("orders", "two")

    result = run_handler(lambda batch: None, topic="orders", group="mailer", consume_mode=second)

    assert [message.body for message in result.acked] == [b"two"]
