"""Retries, delays and dead letters without waiting: what RocketMQ would do in hours is done when the test looks.

The core of these tests is in tests/testing/test_retries.py.
"""

from __future__ import annotations

import threading

import pytest

from rmqd import Batch, DeadLetter
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


def test_a_timed_message_comes_too(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "in a day", properties={"TIMER_DELAY_SEC": "86400"})
    result = run_handler(lambda batch: None, topic="orders", group="mailer")
    assert len(result.acked) == 1
    assert 86_390 <= result.elapsed_seconds < 86_405


@pytest.mark.slow
def test_an_orderly_handler_that_fails_for_ever_is_told(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "poison", keys="order-1")
    with pytest.raises(StillBusyError, match=r"had attempt \d\d+"):
        run_handler(always_fails, topic="orders", group="mailer", consume_mode="orderly", timeout=3.0)


def test_what_a_handler_left_uncommitted_is_there_for_the_next(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "one")
    rocketmq.send("orders", "two")
    manual = {"topic": "orders", "group": "mailer", "consume_mode": "orderly", "auto_commit": False}
    assert len(run_handler(lambda batch: None, **manual).attempts) == 2
    assert rocketmq.offsets("mailer", "orders") == {0: 0}
    assert len(run_handler(lambda batch: batch.commit(), **manual).attempts) == 2
    assert rocketmq.offsets("mailer", "orders") == {0: 2}


def test_time_stands_while_another_run_works(rocketmq: RocketMQ, run_handler: Run) -> None:
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
