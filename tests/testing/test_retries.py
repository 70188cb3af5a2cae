"""Retries, delays and dead letters without waiting, although they take hours with RocketMQ."""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

import rmqd
from rmqd import Batch, MessageQueue, Suspend
from rmqd.consumer.cache.process_queue import ProcessQueue
from rmqd.consumer.stats.counters import TopicStats
from rmqd.testing import RocketMQ, RunResult
from rmqd.testing.handler_run import is_cache_idle
from tests.consumer.blocks import block_of

Run = Callable[..., RunResult]

LEVELS = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
"""Seconds of RocketMQ's delay levels 3 to 18, which the retries of a message go through."""


class Broken(Exception):
    """Raised by the handlers below."""


def always_fails(batch: Batch) -> None:
    raise Broken(batch[0].body.decode())


def test_a_message_is_dead_lettered_after_sixteen_retries(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    rocketmq.send("orders", "poison", keys="order-1")
    began = time.monotonic()
    result = run_handler(always_fails, topic="orders", group="mailer")
    assert time.monotonic() - began < 30, "delays take no real time"
    attempts = result.attempts_of("order-1")
    assert [one.number for one in attempts] == list(range(1, 18))
    assert [one.outcome for one in attempts] == ["retried"] * 16 + ["dead_lettered"]
    between = [after.at - before.at for before, after in itertools.pairwise(attempts)]
    assert between == pytest.approx(LEVELS, abs=5)
    assert result.elapsed_seconds == pytest.approx(sum(LEVELS), abs=30)
    assert [one.reconsume_times for one in rocketmq.retries("mailer")] == list(range(1, 17))
    (dead,) = rocketmq.dead_letters("mailer")
    assert (dead.body, dead.keys) == (b"poison", "order-1")
    assert dead.properties["RMQD_REASON"] == "max_reconsume_times reached"
    assert rocketmq.offsets("mailer", "orders") == {0: 1}


def test_one_message_of_a_batch_is_dead_lettered_with_its_reason(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    for body in ("good", "bad", "good too"):
        rocketmq.send("orders", body, keys=body)

    def handle(batch: Batch) -> None:
        for message in batch:
            if message.body == b"bad":
                batch.dead_letter(message, "not JSON")

    result = run_handler(handle, topic="orders", group="mailer", consume_message_batch_max_size=3)
    assert [one.keys for one in result.acked] == ["good", "good too"]
    assert [one.properties["RMQD_REASON"] for one in result.dead_letters] == ["not JSON"]
    assert result.elapsed_seconds < 5


def test_a_suspension_of_an_orderly_queue_takes_no_real_time(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders", queues=2)
    for number in range(3):
        rocketmq.send("orders", f"a{number}", queue_id=0)
        rocketmq.send("orders", f"b{number}", queue_id=1)
    handled: list[bytes] = []

    async def handle(batch: Batch) -> None:
        if batch[0].body == b"a1" and batch[0].reconsume_times < 3:
            raise Suspend(30)
        handled.append(batch[0].body)

    result = run_handler(handle, topic="orders", group="mailer", consume_mode="orderly")
    assert [body for body in handled if body.startswith(b"a")] == [b"a0", b"a1", b"a2"]
    assert [body for body in handled if body.startswith(b"b")] == [b"b0", b"b1", b"b2"]
    assert 90 <= result.elapsed_seconds < 95
    assert rocketmq.offsets("mailer", "orders") == {0: 3, 1: 3}


@pytest.mark.parametrize("concurrency", [1, 4])
@pytest.mark.parametrize(
    "mode",
    [{}, {"pull_threshold_for_queue": 1}, {"consume_mode": "orderly"}, {"order_by": "keys"}, {"consume_mode": "pop"}],
    ids=["concurrently", "held back", "orderly", "by key", "pop"],
)
def test_pauses_of_retries_in_place_take_no_real_time(
    rocketmq: RocketMQ, run_handler: Run, mode: dict[str, Any], concurrency: int
) -> None:
    """Other messages wait behind the paused message, or in a queue for which no worker is free."""
    rocketmq.create_topic("orders", queues=2)
    for number in range(4):
        rocketmq.send("orders", f"{number}", keys=f"{number}", queue_id=number % 2)
    calls: list[str] = []

    def handle(batch: Batch) -> None:
        calls.append(body := batch[0].body.decode())
        if body in "01" and calls.count(body) < 4:
            raise Broken

    retry = {"in_place": 3, "backoff": "100s", "max_backoff": "3m"}
    result = run_handler(handle, topic="orders", group="mailer", concurrency=concurrency, retry=retry, **mode)
    assert Counter(calls) == {"0": 4, "1": 4, "2": 1, "3": 1}
    assert [attempt.number for attempt in result.attempts if attempt.outcome == "acked"] == [1] * 4
    if mode.get("consume_mode") != "pop":
        pauses = 100 + 180 + 180
        assert result.elapsed_seconds == pytest.approx(pauses * (2 if concurrency == 1 else 1), abs=20)


def test_a_pause_in_place_does_not_skip_a_running_handler(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders", queues=2)
    rocketmq.send("orders", "fails", queue_id=0)
    rocketmq.send("orders", "works", queue_id=1)
    has_failed, was_repeated = threading.Event(), threading.Event()
    skipped: list[bool] = []

    def handle(batch: Batch) -> None:
        if batch[0].body == b"works":
            has_failed.wait(30)
            skipped.append(was_repeated.wait(0.3))
        elif not has_failed.is_set():
            has_failed.set()
            raise Broken
        else:
            was_repeated.set()

    retry = {"in_place": 1, "backoff": "1m", "max_backoff": "1m"}
    run_handler(handle, topic="orders", group="mailer", concurrency=2, retry=retry)
    assert skipped == [False]
    assert was_repeated.is_set()


@pytest.mark.parametrize("size", [1, 3])
def test_an_error_that_asks_to_wait_is_in_the_result(rocketmq: RocketMQ, run_handler: Run, size: int) -> None:
    """The second message fails at first. It is the only message with two attempts, in batches of any size."""
    away = ConnectionError("no answer")
    away.rmqd_wait_seconds = 60.0  # type: ignore[attr-defined]
    seen: list[str] = []

    @rmqd.handler(decode=bytes.decode)
    async def handle(order: str) -> None:
        seen.append(order)
        if order == "1" and seen.count("1") == 1:
            raise away

    rocketmq.create_topic("orders")
    for key in "012":
        rocketmq.send("orders", key, keys=key)
    result = run_handler(handle, topic="orders", group="mailer", consume_message_batch_max_size=size)
    assert [(one.message.keys, one.outcome) for one in result.attempts if one.error is away] == [("1", "retried")]
    assert {key: len(result.attempts_of(key)) for key in "012"} == {"0": 1, "1": 2, "2": 1}


def test_limits_of_pulls_take_no_real_time(rocketmq: RocketMQ, run_handler: Run) -> None:
    rocketmq.create_topic("orders")
    for number in range(40):
        rocketmq.send("orders", f"{number}")
    limits = {"pull_rate_limit": 1, "pull_interval": "60s", "pull_batch_size": 1}
    result = run_handler(lambda batch: None, topic="orders", group="mailer", **limits)  # ends after 30 s
    assert len(result.acked) == 40


def test_a_queue_is_idle_if_its_pull_is_held_or_a_message_waits_for_a_delay() -> None:
    place = MessageQueue("orders", "broker-a", 0)
    queue, held = ProcessQueue(place, 0, TopicStats("orders", is_retry=False)), {("orders", 0)}
    assert is_cache_idle(queue, held)
    assert not is_cache_idle(queue, {("orders", 1)}), "the broker does not hold its pull"
    queue.put(block_of([0, 1]), 2)
    assert not is_cache_idle(queue, held), "a message waits for a handler"
    queue.postpone(queue.take(1))
    assert is_cache_idle(queue, set()), "a failed message waits for a delay"
    queue.begin_turn()
    assert not is_cache_idle(queue, held), "a handler has a batch"
    assert not is_cache_idle(queue, held, are_pausing=True), "a free worker takes the next message"
    assert is_cache_idle(queue, held, are_pausing=True, has_slot=False), "a failed batch waits for its call in place"


def test_the_clock_does_not_jump_while_a_handler_runs(rocketmq: RocketMQ, run_handler: Run) -> None:
    """A retry of one message must not overtake another running handler call."""
    rocketmq.create_topic("orders", queues=2)
    rocketmq.send("orders", "fails", queue_id=0)
    rocketmq.send("orders", "works", queue_id=1)
    events: list[str] = []

    def handle(batch: Batch) -> None:
        body = batch[0].body.decode()
        if body == "fails" and not batch[0].reconsume_times:
            raise Broken
        if body == "works":
            time.sleep(0.3)
        events.append(body)

    run_handler(handle, topic="orders", group="mailer")
    assert events == ["works", "fails"]
