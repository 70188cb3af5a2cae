"""`retry` and `dead_letter` of a group: calls again in place, and dead letters, by exception.

The core of these tests is in tests/testing/test_failures.py.
"""

from __future__ import annotations

from rmqd import Batch
from rmqd.testing import RocketMQ
from tests.testing.test_failures import QUICK, Away, Run, Wrong, send


def test_exceptions_that_are_not_worth_a_retry(rocketmq: RocketMQ, run_handler: Run) -> None:
    async def handle(batch: Batch) -> None:
        raise Wrong("no customer") if batch[0].keys == "wrong" else Away

    send(rocketmq, "wrong", "away")
    result = run_handler(
        handle, topic="orders", group="mailer", dead_letter={"on": ["ValueError"]}, max_reconsume_times=1
    )
    assert {key: len(result.attempts_of(key)) for key in ("wrong", "away")} == {"wrong": 1, "away": 2}
    reasons = {letter.keys: letter.properties["RMQD_REASON"] for letter in result.dead_letters}
    assert reasons["wrong"] == "Wrong: no customer"


def test_a_plain_handler_gets_what_it_did_not_decide_about(rocketmq: RocketMQ, run_handler: Run) -> None:
    calls: list[list[str | None]] = []

    async def handle(batch: Batch) -> None:
        calls.append([message.keys for message in batch])
        batch.ack(batch[0])
        if len(calls) < 3:
            raise Away

    send(rocketmq, "a", "b", "c")
    run_handler(handle, topic="orders", group="mailer", retry=QUICK, consume_message_batch_max_size=10)
    assert calls == [["a", "b", "c"], ["b", "c"], ["c"]]


def test_no_call_is_made_behind_the_deadline(rocketmq: RocketMQ, run_handler: Run) -> None:
    calls: list[int] = []

    async def handle(batch: Batch) -> None:
        calls.append(batch[0].reconsume_times)
        raise Away

    send(rocketmq, "late")
    run_handler(
        handle,
        topic="orders",
        group="mailer",
        retry={"in_place": 3, "backoff": "1m", "max_backoff": "1m"},
        consume_timeout="50s",
        max_reconsume_times=1,
    )
    assert calls == [0, 1]
