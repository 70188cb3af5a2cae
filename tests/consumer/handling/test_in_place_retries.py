"""Retries in place: their messages, their deadline, and how each is logged and counted."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

import rmqd
from rmqd.consumer.consumer_options import FailureOptions
from rmqd.consumer.handling.in_place_retries import FailurePolicy
from rmqd.handler_api.batch import ACK, Batch, Decision, KnownLease, ManualCommitBatch, Outcome
from rmqd.testing import RocketMQ
from tests.clock import ManualClock
from tests.consumer.groups import group_options
from tests.consumer.handling.test_settlement import batch_of

FAILURES = FailureOptions(3, 1, 2, frozenset({"OSError"}), frozenset())
AWAY = ConnectionError("no answer")


class Attempt(ManualClock):
    """An attempt at three messages within 10 s, with pauses of 1, 2 and 2 s that pass at once."""

    def __init__(self, in_pause: Callable[[Attempt], object] = bool) -> None:
        super().__init__()
        self.queue, batch = batch_of(3)
        self.lease = KnownLease()
        self.batch = ManualCommitBatch(self.lease, list(batch), batch.message_queue)
        self.calls, self.in_pause = list[list[int]](), in_pause

    async def sleep(self, seconds: float, /) -> None:
        self.turn(seconds)
        self.in_pause(self)

    async def error_of(self, handle: Callable[[Batch], object]) -> Exception | None:
        async def call(batch: Batch) -> None:
            self.calls.append([message.queue_offset for message in batch])
            handle(batch)

        policy = FailurePolicy(group_options(failures=FAILURES, consume_timeout_seconds=10), self)
        try:
            await policy.retry(call, cast("Any", SimpleNamespace(process_queue=self.queue)), self.batch)
        except (ConnectionError, ValueError) as error:
            return error
        return None


@pytest.mark.parametrize("decides", [True, False])
async def test_a_retry_in_place_gets_the_undecided_messages(decides: bool) -> None:
    """The first of them is logged. The attempt has failed after the last call, unless all are decided."""
    attempt = Attempt()

    def handle(batch: Batch) -> None:
        if decides or len(batch) == 3:
            batch.ack(batch[0])
        raise AWAY

    with capture_logs() as logs:
        assert await attempt.error_of(handle) is (None if decides else AWAY)
    assert attempt.calls == [[0, 1, 2], [1, 2], *([[2]] if decides else [[1, 2]] * 2)]
    offsets = {message.msg_id: message.queue_offset for message in attempt.batch}
    noted = [(offsets[one["msg_id"]], one["retry"], one["seconds"]) for one in logs]
    assert noted == [(1, 1, 1), *([(2, 2, 2)] if decides else [(1, 2, 2), (1, 3, 2)])]
    assert attempt.queue.stats.snapshot().exceptions == {"ConnectionError": len(noted)}


@pytest.mark.parametrize("error", [None, ValueError("wrong")], ids=["the first is done", "the first failed"])
async def test_a_failed_message_is_retried_in_place_unless_another_one_failed(error: Exception | None) -> None:
    attempt, away = Attempt(), Decision(Outcome.RETRY, error=AWAY)

    def handle(batch: Batch) -> None:
        if len(attempt.calls) == 1:
            batch.decide(1, away)
            batch.wait_behind(batch[1])
            if error is not None:
                raise error

    assert await attempt.error_of(handle) is error
    assert attempt.calls == [[0, 1, 2], [1, 2]][: 2 if error is None else 1]
    decisions = attempt.batch.decisions()
    assert (decisions.get(0), decisions.get(1)) == ((ACK, None) if error is None else (None, away))


@pytest.mark.parametrize(
    ("seconds", "in_pause", "calls"),
    [
        (9, lambda _: pytest.fail("a pause until the deadline is useless"), 1),
        (8, lambda attempt: attempt.turn(0.5), 2),
        (8, lambda attempt: attempt.turn(1), 1),
        (0, lambda attempt: attempt.queue.start_release(), 1),
        (0, lambda attempt: attempt.queue.drop("handed_over"), 1),
        (0, lambda attempt: setattr(attempt.lease, "valid", False), 1),
        (0, lambda attempt: attempt.batch.rollback(), 1),
    ],
)
async def test_no_call_begins_at_the_deadline_or_after_the_end_of_the_attempt(
    seconds: float, in_pause: Callable[[Attempt], object], calls: int
) -> None:
    """The first call takes `seconds` and fails. `in_pause` is called in the pause after it."""
    attempt = Attempt(in_pause)

    def handle(batch: Batch) -> None:
        attempt.turn(seconds if len(attempt.calls) == 1 else 0)
        raise AWAY

    assert await attempt.error_of(handle) is AWAY
    assert len(attempt.calls) == calls


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
def test_only_failed_messages_of_a_batch_are_retried_in_place(mode: str) -> None:
    calls: list[str] = []

    @rmqd.handler(decode=bytes.decode)
    async def handle(order: str) -> None:
        calls.append(order)
        if order == "b" and calls.count("b") < 3:
            raise AWAY
        if order == "c":
            raise ExceptionGroup("x", [AWAY, ValueError()])

    with RocketMQ() as rocketmq:
        rocketmq.create_topic("orders")
        for body in ("a", "b", "c", "d"):
            rocketmq.send("orders", body, keys=body)
        keys: dict[str, Any] = {"consume_mode": mode, "consume_message_batch_max_size": 10}
        keys |= {"retry": {"in_place": 3, "backoff": "1ms"}, "dead_letter": {"on": ["ValueError"]}}
        result = rocketmq.run_handler(handle, topic="orders", group="g", **keys)
        assert calls == (["a", "b", "b", "b", "c", "d"] if mode == "orderly" else ["a", "b", "c", "d", "b", "b"])
        assert [letter.keys for letter in result.dead_letters] == ["c"]
        assert rocketmq.retries("g") == []
