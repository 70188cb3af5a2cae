"""`retry` and `dead_letter` of a group: calls again in place, and dead letters, by exception."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

import rmqd
from rmqd import Batch, DeadLetter
from rmqd.testing import RocketMQ, RunResult

Run = Callable[..., RunResult]
QUICK = {"in_place": 3, "backoff": "1ms"}


class Away(ConnectionError):
    """A database is away."""


class Wrong(ValueError):
    """A message is wrong."""


def send(rocketmq: RocketMQ, *bodies: str) -> None:
    rocketmq.create_topic("orders")
    for body in bodies:
        rocketmq.send("orders", body, keys=body)


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("mode", ["concurrently", "orderly", "pop"])
def test_a_call_that_failed_is_made_again_in_its_slot(
    rocketmq: RocketMQ, run_handler: Run, mode: str, is_async: bool
) -> None:
    calls: Counter[str] = Counter()

    def handle(batch: Batch) -> None:
        calls[batch[0].keys or ""] += 1
        if batch[0].keys == "late" and calls["late"] < 4:
            raise Away

    async def handle_async(batch: Batch) -> None:
        handle(batch)

    send(rocketmq, "late", "next")
    result = run_handler(
        handle_async if is_async else handle, topic="orders", group="mailer", consume_mode=mode, retry=QUICK
    )
    assert calls == {"late": 4, "next": 1}
    assert {message.reconsume_times for message in result.acked} == {0}
    assert rocketmq.retries("mailer") == []


@pytest.mark.parametrize("names", [["ConnectionError"], ["test_failures.Away", "OSError"]])
def test_only_named_exceptions_are_worth_it(rocketmq: RocketMQ, run_handler: Run, names: list[str]) -> None:
    """By the class's own name, or that of a class that it inherits from; of a group, if all in it are."""
    calls: Counter[str] = Counter()

    async def handle(batch: Batch) -> None:
        calls[batch[0].keys or ""] += 1
        raises: dict[str, list[Exception]] = {
            "away": [Away()],
            "key": [KeyError()],
            "dead": [DeadLetter("x")],
            "both": [Away(), KeyError()],
        }
        error = ExceptionGroup("x", raises[batch[0].keys or ""])
        raise error if len(names) > 1 or batch[0].keys == "both" else error.exceptions[0]

    send(rocketmq, "away", "key", "dead", "both")
    run_handler(handle, topic="orders", group="mailer", retry=QUICK | {"on": names}, max_reconsume_times=0)
    assert calls == {"away": 4, "key": 1, "dead": 1, "both": 1}


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
def test_of_a_batch_only_what_failed_is_handled_again(rocketmq: RocketMQ, run_handler: Run, mode: str) -> None:
    """Message by message for a typed handler; what it acknowledged stays acknowledged."""
    calls: list[str] = []

    @rmqd.handler(decode=bytes.decode)
    async def handle(order: str) -> None:
        calls.append(order)
        if order == "b" and calls.count("b") < 3:
            raise Away
        if order == "c":
            raise ExceptionGroup("x", [Away(), Wrong()])

    send(rocketmq, "a", "b", "c", "d")
    result = run_handler(
        handle,
        topic="orders",
        group="mailer",
        consume_mode=mode,
        retry=QUICK,
        dead_letter={"on": ["Wrong"]},
        consume_message_batch_max_size=10,
    )
    assert calls == (["a", "b", "b", "b", "c", "d"] if mode == "orderly" else ["a", "b", "c", "d", "b", "b"])
    assert [letter.keys for letter in result.dead_letters] == ["c"]
    assert rocketmq.retries("mailer") == []
