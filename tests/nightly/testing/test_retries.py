"""Retries, delays and dead letters without waiting: RocketMQ's delays of hours pass at once.

The core of these tests is in tests/testing/test_retries.py.
"""

from __future__ import annotations

import threading
import time

import pytest

from rmqd import Batch, DeadLetter, Retry
from rmqd.consumer.handling.handler_failures import HandlerHungError
from rmqd.testing import RocketMQ, RunResult, StillBusyError
from tests.testing.test_retries import Broken, Run, always_fails


def test_only_the_dead_letters_of_this_run_are_in_its_result(rocketmq: RocketMQ, run_handler: Run) -> None:
    def refuse(batch: Batch) -> None:
        raise DeadLetter(batch[0].body.decode())

    for body in ("first", "second"):
        rocketmq.send("orders", body)
        result = run_handler(refuse, topic="orders", group="mailer")
        assert [one.body.decode() for one in result.dead_letters] == [body]
    assert [one.body for one in rocketmq.dead_letters("mailer")] == [b"first", b"second"]


def test_a_timer_message_is_delivered(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "in a day", properties={"TIMER_DELAY_SEC": "86400"})
    result = run_handler(lambda batch: None, topic="orders", group="mailer")
    assert len(result.acked) == 1
    assert 86_390 <= result.elapsed_seconds < 86_405


@pytest.mark.slow
def test_an_orderly_handler_that_always_fails_is_reported(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "poison", keys="order-1")
    with pytest.raises(StillBusyError, match=r"had attempt \d\d+"):
        run_handler(always_fails, topic="orders", group="mailer", consume_mode="orderly", timeout=3.0)


def test_uncommitted_messages_are_handled_by_the_next_run(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "one")
    rocketmq.send("orders", "two")
    manual = {"topic": "orders", "group": "mailer", "consume_mode": "orderly", "auto_commit": False}
    assert len(run_handler(lambda batch: None, **manual).attempts) == 2
    assert rocketmq.offsets("mailer", "orders") == {0: 0}
    assert len(run_handler(lambda batch: batch.commit(), **manual).attempts) == 2
    assert rocketmq.offsets("mailer", "orders") == {0: 2}


def test_time_does_not_jump_while_another_run_works(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "one")
    working, retried = threading.Event(), threading.Event()
    second: list[RunResult] = []

    def work(batch: Batch) -> None:
        working.set()
        assert not retried.wait(0.3), "the other group's retry came before this was done"

    def fail_once(batch: Batch) -> None:
        assert working.wait(10)
        if not batch[0].reconsume_times:
            raise Broken
        retried.set()

    beside = threading.Thread(
        target=lambda: second.append(run_handler(fail_once, topic="orders", group="printer", timeout=20))
    )
    beside.start()
    first = run_handler(work, topic="orders", group="mailer", timeout=20)
    beside.join()
    assert first.errors == []
    assert [one.outcome for one in second[0].attempts] == ["retried", "acked"]


def test_a_message_that_fails_twice_is_acknowledged_at_its_third_attempt(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "slow", keys="order-1")
    rocketmq.send("orders", "good", keys="order-2")

    async def handle(batch: Batch) -> None:
        if batch[0].keys == "order-1" and batch[0].reconsume_times < 2:
            raise Broken

    result = run_handler(handle, topic="orders", group="mailer")
    assert [one.outcome for one in result.attempts_of("order-1")] == ["retried", "retried", "acked"]
    assert [one.keys for one in result.acked] == ["order-2", "order-1"]
    assert [one.keys for one in result.retried] == ["order-1", "order-1"]
    assert [type(error) for error in result.errors] == [Broken, Broken]
    assert 40 <= result.elapsed_seconds < 45
    assert repr(result) == "<RunResult 2 acked, 2 retried, 0 dead_lettered in 4 attempts, 40 s>"


def test_the_delay_level_of_a_retry_is_used(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "later", keys="order-1")

    def handle(batch: Batch) -> None:
        if not batch[0].reconsume_times:
            raise Retry(delay_level=18)

    result = run_handler(handle, topic="orders", group="mailer")
    assert 7200 <= result.elapsed_seconds < 7210


def test_a_delayed_message_is_delivered(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    before = rocketmq.now()
    rocketmq.send("orders", "in two hours", delay_level=18)
    (attempt,) = run_handler(lambda batch: None, topic="orders", group="mailer").attempts
    assert 7200 <= attempt.at - before < 7210
    assert rocketmq.now() - before >= 7200
    assert attempt.message.store_timestamp / 1000 - before == pytest.approx(7200, abs=5)


def test_an_orderly_message_is_dead_lettered_in_place(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    for body in ("poison", "good"):
        rocketmq.send("orders", body, keys=body)

    def handle(batch: Batch) -> None:
        if batch[0].keys == "poison":
            raise Broken

    result = run_handler(
        handle, topic="orders", group="mailer", consume_mode="orderly", max_reconsume_times=2,
        suspend_current_queue_time="10s",
    )  # fmt: skip
    assert [one.number for one in result.attempts_of("poison")] == [1, 2, 3]
    assert [one.keys for one in result.dead_letters] == ["poison"]
    assert [one.keys for one in result.acked] == ["good"]
    assert 20 <= result.elapsed_seconds < 25


def test_consume_timeout_is_real_time(rocketmq: RocketMQ, run_handler: Run) -> None:
    """Time does not jump during a call, so a quick handler cannot expire."""
    rocketmq.send("orders", "hangs", keys="order-1")

    def handle(batch: Batch) -> None:
        if not batch[0].reconsume_times:
            time.sleep(1)

    result = run_handler(handle, topic="orders", group="mailer", consume_timeout="600ms")
    assert [one.outcome for one in result.attempts_of("order-1")] == ["retried", "acked"]


def test_a_group_that_fails_because_of_a_hung_handler_is_reported(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.send("orders", "hangs")
    let_go = threading.Event()
    try:
        with pytest.raises(HandlerHungError, match="all 1 calls of handler"):
            run_handler(
                lambda batch: let_go.wait(), topic="orders", group="mailer", concurrency=1, consume_timeout="50ms"
            )
    finally:
        let_go.set()
