"""`retry` and `dead_letter` of a group: retries in place, and dead letters, by exception.

The core of these tests is in tests/consumer/handling/test_in_place_retries.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

import pytest

import rmqd
from rmqd import Batch, DeadLetter, Retry
from rmqd.errors import ConfigError
from rmqd.testing import RocketMQ, RunResult

Run = Callable[..., RunResult]
QUICK = {"in_place": 3, "backoff": "1ms"}


class Away(ConnectionError):
    """A database is unavailable."""


class Wrong(ValueError):
    """A message is wrong."""


def send(rocketmq: RocketMQ, *bodies: str) -> None:
    rocketmq.create_topic("orders")
    for body in bodies:
        rocketmq.send("orders", body, keys=body)


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("mode", ["concurrently", "orderly", "pop"])
def test_a_failed_call_is_retried_in_its_slot(rocketmq: RocketMQ, run_handler: Run, mode: str, is_async: bool) -> None:
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
def test_only_named_exceptions_are_retried_in_place(rocketmq: RocketMQ, run_handler: Run, names: list[str]) -> None:
    """The name is that of the class or a base class. In an exception group, each exception must be named."""
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


def test_named_exceptions_are_dead_lettered_without_a_retry(rocketmq: RocketMQ, run_handler: Run) -> None:
    async def handle(batch: Batch) -> None:
        raise Wrong("no customer") if batch[0].keys == "wrong" else Away

    send(rocketmq, "wrong", "away")
    result = run_handler(
        handle, topic="orders", group="mailer", dead_letter={"on": ["ValueError"]}, max_reconsume_times=1
    )
    assert {key: len(result.attempts_of(key)) for key in ("wrong", "away")} == {"wrong": 1, "away": 2}
    reasons = {letter.keys: letter.properties["RMQD_REASON"] for letter in result.dead_letters}
    assert reasons["wrong"] == "Wrong: no customer"


def test_a_retry_in_place_gets_only_undecided_messages(rocketmq: RocketMQ, run_handler: Run) -> None:
    calls: list[list[str | None]] = []

    async def handle(batch: Batch) -> None:
        calls.append([message.keys for message in batch])
        batch.ack(batch[0])
        if len(calls) < 3:
            raise Away

    send(rocketmq, "a", "b", "c")
    run_handler(handle, topic="orders", group="mailer", retry=QUICK, consume_message_batch_max_size=10)
    assert calls == [["a", "b", "c"], ["b", "c"], ["c"]]


def test_no_retry_in_place_starts_after_the_deadline(rocketmq: RocketMQ, run_handler: Run) -> None:
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


def test_an_attempt_fails_after_the_last_retry_in_place(rocketmq: RocketMQ, run_handler: Run) -> None:
    def handle(batch: Batch) -> None:
        raise Away("no answer")

    send(rocketmq, "late")
    result = run_handler(handle, topic="orders", group="mailer", retry=QUICK, max_reconsume_times=1)
    assert len(result.attempts) == 8
    (dead,) = result.dead_letters
    assert dead.properties["RMQD_EXCEPTION"].endswith("Away: no answer\n")


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"retry": {"in_place": 101}}, "retry.in_place: 101 is out of range"),
        ({"retry": {"on": ["a b"]}}, r"retry.on\[0\]: 'a b' is not valid; expected the name of an exception"),
        ({"dead_letter": {"on": [7]}}, r"dead_letter.on\[0\]: 7 is not text"),
    ],
)
def test_wrong_settings(run_handler: Run, keys: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        run_handler(lambda batch: None, topic="orders", group="mailer", **keys)


class Transaction:
    """Middleware with a transaction around each call; the first commit fails."""

    failure: ClassVar[Exception | None] = None
    written: ClassVar[list[str]] = []

    async def __call__(self, batch: Batch, call_next: Callable[[Batch], Awaitable[object]]) -> None:
        await call_next(batch)
        failure, Transaction.failure = Transaction.failure, None
        if failure is not None:
            raise failure
        self.written.extend(message.keys or "" for message in batch)


@pytest.mark.parametrize("raised", [Retry(), ConnectionError("the commit failed")], ids=["decision", "not retried"])
@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
def test_an_exception_of_middleware_does_not_acknowledge_the_rest(
    rocketmq: RocketMQ, run_handler: Run, monkeypatch: pytest.MonkeyPatch, mode: str, raised: Exception
) -> None:
    """One message failed in the handler. The others failed in the middleware, which could not commit them."""
    monkeypatch.setattr(Transaction, "failure", raised)
    monkeypatch.setattr(Transaction, "written", [])
    failures: list[str] = []

    @rmqd.handler(decode=bytes.decode)
    async def handle(order: str) -> None:
        if order == "b" and not failures:
            failures.append(order)
            raise Wrong

    send(rocketmq, "a", "b", "c", "d")
    run_handler(
        handle,
        topic="orders",
        group="mailer",
        consume_mode=mode,
        retry=QUICK | {"on": ["Wrong"]},
        middleware=[f"{__name__}:Transaction"],
        consume_message_batch_max_size=10,
        suspend_current_queue_time="10ms",
    )
    assert sorted(Transaction.written) == ["a", "b", "c", "d"]
