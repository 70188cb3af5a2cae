"""The arguments of a typed handler, and the outcome of each message of its batch."""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic
import pytest
from structlog.testing import capture_logs

import rmqd
from rmqd import Batch, DeadLetter, Message, Retry
from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError
from rmqd.testing import RocketMQ, RunResult

Run = Callable[..., RunResult]


class Model(pydantic.BaseModel):
    """An order as a pydantic model."""

    number: int
    customer: str = "ada"


@dataclass
class Data:
    """The same as a dataclass."""

    number: int
    customer: str = "ada"


Struct = msgspec.defstruct("Struct", [("number", int), ("customer", str, "ada")])


def send(rocketmq: RocketMQ, *bodies: object) -> None:
    for number, body in enumerate(bodies, 1):
        rocketmq.send("orders", body if isinstance(body, str) else json.dumps(body), keys=f"order-{number}")


@pytest.mark.parametrize("kind", [Model, Data, Struct], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
def test_a_handler_gets_the_decoded_body_and_the_message(
    rocketmq: RocketMQ, run_handler: Run, kind: Any, is_async: bool
) -> None:
    seen: list[tuple[Any, str | None]] = []

    @rmqd.handler(json=kind)
    def handle(order, message: Message) -> None:  # type: ignore[no-untyped-def]
        seen.append((order, message.keys))

    @rmqd.handler(json=kind)
    async def handle_async(order: kind, message: Message) -> None:
        seen.append((order, message.keys))

    send(rocketmq, {"number": 7})
    run_handler(handle_async if is_async else handle, topic="orders", group="mailer")

    assert seen == [(kind(number=7, customer="ada"), "order-1")]


@pytest.mark.parametrize("kind", [Model, Data, Struct], ids=lambda kind: kind.__name__)
def test_an_invalid_body_is_dead_lettered_with_a_reason(rocketmq: RocketMQ, run_handler: Run, kind: Any) -> None:
    @rmqd.handler(json=kind)
    async def handle(order: kind) -> None: ...

    bodies = ["oops", '{"number": "many secrets"}', "{}", "[]"]
    send(rocketmq, *bodies, {"number": 1})
    result = run_handler(handle, topic="orders", group="mailer")

    reasons = {dead.body.decode(): dead.properties["RMQD_REASON"] for dead in rocketmq.dead_letters("mailer")}
    assert [message.keys for message in result.acked] == ["order-5"]
    assert sorted(reasons) == sorted(bodies)
    for body, reason in reasons.items():
        assert reason.startswith(f"the body is not a valid {kind.__name__} in JSON: "), body
        assert "secrets" not in reason
        assert "number" in reason or body in ("oops", "[]")


@pytest.mark.parametrize(
    ("on_invalid", "outcomes"), [("skip", ["acked"]), ("retry", ["retried"] * 2 + ["dead_lettered"])]
)
def test_on_invalid_decides_about_an_invalid_body(
    rocketmq: RocketMQ, run_handler: Run, on_invalid: Any, outcomes: list[str]
) -> None:
    @rmqd.handler(json=Model, on_invalid=on_invalid)
    def handle(order: Model) -> None: ...

    send(rocketmq, "oops")
    with capture_logs() as logs:
        result = run_handler(handle, topic="orders", group="mailer", max_reconsume_times=2)

    assert [attempt.outcome for attempt in result.attempts] == outcomes
    reasons = [letter.properties["RMQD_REASON"] for letter in result.dead_letters]
    assert all(reason.startswith("the body is not a valid Model in JSON: ") for reason in reasons)
    told = [line.get("acknowledged") for line in logs if line["event"] == "payload.invalid"]
    assert told == [True if outcome == "acked" else None for outcome in outcomes], "acknowledged messages are marked"


@pytest.mark.parametrize("mode", ["concurrently", "orderly", "pop"])
def test_an_error_of_a_call_affects_only_its_message(rocketmq: RocketMQ, run_handler: Run, mode: str) -> None:
    """In an orderly group, later messages wait for the failed message, and their attempts do not count."""
    handled: list[int] = []

    @rmqd.handler(json=Model)
    async def handle(order: Model, message: Message) -> object:
        if order.number == 2 and message.reconsume_times < 2:
            raise Retry
        if order.number == 3:
            return DeadLetter("three")
        if order.number == 5 and message.reconsume_times == 0:
            raise ValueError("five")
        handled.append(order.number)
        return None

    rocketmq.create_topic("orders")
    send(rocketmq, *({"number": number} for number in range(1, 7)))
    result = run_handler(
        handle,
        topic="orders",
        group="mailer",
        consume_mode=mode,
        consume_message_batch_max_size=10,
        max_reconsume_times=2,
    )

    assert sorted(handled) == [1, 2, 4, 5, 6]
    assert mode != "orderly" or handled == [1, 2, 4, 5, 6]
    assert [letter.properties["RMQD_REASON"] for letter in result.dead_letters] == ["three"]
    assert {key: len(result.attempts_of(f"order-{key}")) for key in range(1, 7)} == {1: 1, 2: 3, 3: 1, 4: 1, 5: 2, 6: 1}


def test_a_batch_is_handled_at_once_without_its_invalid_messages(rocketmq: RocketMQ, run_handler: Run) -> None:
    calls: list[tuple[list[int], list[str | None], int]] = []

    @rmqd.handler(json=Model)
    async def handle(orders: list[Model], messages: list[Message], batch: Batch) -> None:
        calls.append(([order.number for order in orders], [message.keys for message in messages], len(batch)))
        batch.dead_letter(messages[-1], "the last one")

    rocketmq.create_topic("orders")
    send(rocketmq, {"number": 1}, "oops", {"number": 3})
    result = run_handler(handle, topic="orders", group="mailer", consume_message_batch_max_size=10)

    assert calls == [([1, 3], ["order-1", "order-3"], 2)]
    assert [message.keys for message in result.acked] == ["order-1"]
    reasons = {letter.keys: letter.properties["RMQD_REASON"] for letter in result.dead_letters}
    assert reasons["order-3"] == "the last one"
    assert reasons["order-2"].startswith("the body is not a valid Model in JSON")


def test_in_an_orderly_group_no_message_overtakes_an_invalid_body(rocketmq: RocketMQ, run_handler: Run) -> None:
    calls: list[list[int]] = []

    @rmqd.handler(json=Model, on_invalid="retry")
    async def handle(orders: list[Model]) -> None:
        calls.append([order.number for order in orders])

    rocketmq.create_topic("orders")
    send(rocketmq, {"number": 1}, "oops", {"number": 3})
    run_handler(
        handle,
        topic="orders",
        group="mailer",
        consume_mode="orderly",
        consume_message_batch_max_size=10,
        max_reconsume_times=1,
    )

    assert calls == [[1], [3]]


def test_an_expired_call_keeps_earlier_acknowledgements(rocketmq: RocketMQ, run_handler: Run) -> None:
    handled: list[int] = []

    @rmqd.handler(json=Model)
    async def handle(order: Model, message: Message) -> None:
        if order.number == 2 and not message.reconsume_times:
            await asyncio.Event().wait()
        handled.append(order.number)

    rocketmq.create_topic("orders")
    send(rocketmq, *({"number": number} for number in range(1, 4)))
    run_handler(
        handle,
        topic="orders",
        group="mailer",
        consume_message_batch_max_size=10,
        consume_timeout="100ms",
        concurrency=1,
    )

    assert sorted(handled) == [1, 2, 3]


@pytest.mark.parametrize("mode", ["concurrently", "orderly"])
def test_with_order_by_each_message_is_decided_separately(rocketmq: RocketMQ, run_handler: Run, mode: str) -> None:
    handled: list[int] = []

    @rmqd.handler(json=Model)
    async def handle(order: Model, message: Message) -> None:
        if order.number == 2 and message.reconsume_times < 2:
            raise ValueError(order.number)
        handled.append(order.number)

    rocketmq.create_topic("orders")
    send(rocketmq, *({"number": number} for number in range(1, 5)))
    result = run_handler(
        handle,
        topic="orders",
        group="mailer",
        consume_mode=mode,
        order_by="keys",
        consume_message_batch_max_size=10,
        max_reconsume_times=2,
    )
    assert sorted(handled) == [1, 2, 3, 4]
    assert {key: len(result.attempts_of(f"order-{key}")) for key in range(1, 5)} == {1: 1, 2: 3, 3: 1, 4: 1}


ALL_AT_ONCE: dict[str, Any] = {"topic": "orders", "group": "mailer", "consume_message_batch_max_size": 10}


def send_queue(rocketmq: RocketMQ, *bodies: object) -> None:
    """Send bodies into one queue, so that they are one batch."""
    rocketmq.create_topic("orders")
    send(rocketmq, *bodies)


async def unawaited() -> None: ...


class Mailer:
    """A handler that a function creates, such as a plugin's."""

    def handle(self, batch: Batch) -> None: ...


WORK: list[tuple[Callable[[], object], str]] = [
    (unawaited, "awaited"),
    (concurrent.futures.Future, "awaited"),
    (lambda: enumerate(map(str, [1])), "awaited"),
    (lambda: threading.Thread(target=print), "awaited"),
    (lambda: unawaited, "called"),
    (Mailer, "called"),
]


@pytest.mark.parametrize("work", WORK, ids=["coroutine", "Future", "enumerate", "Thread", "function", "handler"])
def test_each_call_must_finish_the_work_that_it_returns(rocketmq: RocketMQ, run_handler: Run, work: Any) -> None:
    @rmqd.handler(json=Model)
    def handle(order: Model) -> object:
        return work[0]() if order.number == 1 else None

    send_queue(rocketmq, {"number": 1}, {"number": 2})
    with pytest.raises(HandlerNotAwaitedError, match=rf"returned a \w+ that was never {work[1]}"):
        run_handler(handle, **ALL_AT_ONCE)


def test_a_chosen_retry_is_kept_if_the_handler_raises_afterwards(rocketmq: RocketMQ, run_handler: Run) -> None:
    @rmqd.handler(json=Model)
    def handle(order: Model, message: Message, batch: Batch) -> None:
        batch.retry(message, delay_level=5)
        raise ValueError("afterwards")

    send_queue(rocketmq, {"number": 1}, {"number": 2})
    result = run_handler(handle, **ALL_AT_ONCE, dead_letter={"on": ["ValueError"]})
    assert [attempt.outcome for attempt in result.attempts][:2] == ["retried", "retried"]


@pytest.mark.parametrize("count", [1, 2])
def test_an_exception_that_asks_to_wait_is_dead_lettered_by_its_name(
    rocketmq: RocketMQ, run_handler: Run, count: int
) -> None:
    """In a batch of several messages as in a batch of one."""

    @rmqd.handler(json=Model)
    def handle(order: Model) -> None:
        error = ValueError("no such shop")
        error.rmqd_wait_seconds = 0.1  # type: ignore[attr-defined]
        raise error

    send_queue(rocketmq, *({"number": number} for number in range(count)))
    result = run_handler(handle, **ALL_AT_ONCE, dead_letter={"on": ["ValueError"]})
    assert [attempt.outcome for attempt in result.attempts] == ["dead_lettered"] * count
