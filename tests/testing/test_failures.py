"""`retry` and `dead_letter` of a group: calls again in place, and dead letters, by exception."""

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


def test_after_the_last_one_the_attempt_has_failed(rocketmq: RocketMQ, run_handler: Run) -> None:
    def handle(batch: Batch) -> None:
        raise Away("no answer")

    send(rocketmq, "late")
    result = run_handler(handle, topic="orders", group="mailer", retry=QUICK, max_reconsume_times=1)
    assert len(result.attempts) == 8
    (dead,) = result.dead_letters
    assert dead.properties["RMQD_EXCEPTION"].endswith("Away: no answer\n")


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
def test_what_middleware_raises_for_the_rest_is_no_acknowledgement(
    rocketmq: RocketMQ, run_handler: Run, monkeypatch: pytest.MonkeyPatch, mode: str, raised: Exception
) -> None:
    """One message failed by itself; of the others the middleware knows that their transaction was not committed."""
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
