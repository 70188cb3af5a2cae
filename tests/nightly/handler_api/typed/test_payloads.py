"""Arguments of typed handlers, and the outcome of each message of a batch."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import threading
from collections.abc import Callable
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest
from structlog.testing import capture_logs

import rmqd
from rmqd import Batch, DeadLetter, Message, Retry, Suspend
from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError
from rmqd.handler_api.typed.decoders import decoder_of
from rmqd.handler_api.typed.signatures import Payload
from rmqd.handler_api.typed.typed_form import HandlerFormError
from rmqd.testing import RocketMQ, make_message
from tests.handler_api.typed.test_payloads import ALL_AT_ONCE, Model, Run, send, send_queue

Stated = msgspec.defstruct("Stated", [("state", enum.Enum("State", {"PAID": "paid"}))], forbid_unknown_fields=True)


class Paid(pydantic.BaseModel):
    """One member of the union."""

    state: Literal["paid"]


class Sent(pydantic.BaseModel):
    """The other member."""

    state: Literal["sent"]


Tagged = Annotated[Paid | Sent, pydantic.Field(discriminator="state")]


@pytest.mark.parametrize(
    ("kind", "body", "fault"),
    [
        (Stated, {"state": "secret - at `x`"}, "Stated in JSON: Invalid enum value - at `$.state`"),
        (Stated, {"state": "paid", "secret": 1}, "Stated in JSON: Object contains unknown field"),
        (Tagged, {"state": "secret"}, "Paid | Sent in JSON: The tag 'state' is not one of 'paid', 'sent'"),
        (
            dict[str, bool],
            {"secret": 7},
            "dict[str, bool] in JSON: [key]: Input should be a valid boolean, unable to interpret input",
        ),
    ],
    ids=["enum of msgspec", "field of msgspec", "tag of pydantic", "key of pydantic"],
)
def test_the_reason_for_an_invalid_body_does_not_contain_its_values(
    rocketmq: RocketMQ, run_handler: Run, kind: Any, body: dict[str, Any], fault: str
) -> None:
    @rmqd.handler(json=kind)
    async def handle(order: Any) -> None: ...

    send(rocketmq, body)
    run_handler(handle, topic="orders", group="mailer")

    (dead,) = rocketmq.dead_letters("mailer")
    assert dead.properties["RMQD_REASON"] == f"the body is not a valid {fault}"


def test_a_dead_letter_of_a_batch_has_its_own_exception(rocketmq: RocketMQ, run_handler: Run) -> None:
    @rmqd.handler(json=Model)
    def handle(order: Model) -> None:
        if order.number > 1:
            raise ValueError(f"number {order.number}")

    rocketmq.create_topic("orders")
    send(rocketmq, *({"number": number} for number in range(1, 4)))
    result = run_handler(
        handle, topic="orders", group="mailer", consume_message_batch_max_size=10, max_reconsume_times=0
    )

    ends = [letter.properties["RMQD_EXCEPTION"].splitlines()[-1] for letter in result.dead_letters]
    assert sorted(ends) == ["ValueError: number 2", "ValueError: number 3"]
    assert [str(error) for error in result.errors] == ["number 2", "number 3"]


class Mailer:
    """A class with a typed method."""

    class Options(pydantic.BaseModel):
        """The handler's options."""

        sender: str

    sent: list[tuple[str, int]] = []  # noqa: RUF012 - looked at by the test

    def __init__(self, options: Options) -> None:
        self.options = options

    async def start(self) -> None:
        self.sent.clear()

    @rmqd.handler(json=Model)
    async def handle(self, order: Model) -> None:
        self.sent.append((self.options.sender, order.number))


def test_a_method_may_be_a_typed_handler(rocketmq: RocketMQ, run_handler: Run) -> None:
    send(rocketmq, {"number": 7})
    run_handler(Mailer, topic="orders", group="mailer", options={"sender": "shop"})
    assert Mailer.sent == [("shop", 7)]


def test_a_function_may_take_the_options(rocketmq: RocketMQ, run_handler: Run) -> None:
    seen: list[tuple[int, str]] = []

    @rmqd.handler(json=Model)
    def handle(order: Model, options: Mailer.Options) -> None:
        seen.append((order.number, options.sender))

    send(rocketmq, {"number": 7})
    run_handler(handle, topic="orders", group="mailer", options={"sender": "shop"})
    assert seen == [(7, "shop")]


async def test_a_decorated_function_can_be_called_directly() -> None:
    """A unit test then needs no message."""

    @rmqd.handler(json=Model)
    async def handle(order: Model) -> int:
        return order.number

    assert await handle(Model(number=3)) == 3


def test_a_suspension_for_one_message_suspends_its_queue(rocketmq: RocketMQ, run_handler: Run) -> None:
    @rmqd.handler(json=Model)
    async def handle(order: Model, message: Message) -> None:
        if order.number == 2 and not message.reconsume_times:
            raise Suspend(20)

    rocketmq.create_topic("orders")
    send(rocketmq, *({"number": number} for number in range(1, 4)))
    result = run_handler(
        handle, topic="orders", group="mailer", consume_mode="orderly", consume_message_batch_max_size=10
    )
    assert result.elapsed_seconds >= 20


def test_a_batch_has_only_the_messages_of_the_call(rocketmq: RocketMQ, run_handler: Run) -> None:
    """A decision for the whole batch does not apply to a body that cannot be decoded."""
    calls: list[list[int]] = []

    @rmqd.handler(json=Model)
    async def handle(orders: list[Model], batch) -> None:  # type: ignore[no-untyped-def]  # known by its name
        calls.append([order.number for order in orders])
        batch.ack_index = len(batch) - 1
        for index, order in enumerate(orders):
            if order.number == 3 and not batch[index].reconsume_times:
                batch.retry(batch[index])

    send_queue(rocketmq, "oops", {"number": 2}, {"number": 3}, {"number": 4})
    result = run_handler(handle, **ALL_AT_ONCE)

    assert calls == [[2, 3, 4], [3]]
    assert [letter.keys for letter in result.dead_letters] == ["order-1"]


@pytest.mark.parametrize("hangs", [True, False], ids=["hangs", "cancelled"])
def test_messages_whose_call_did_not_begin_count_no_attempt(rocketmq: RocketMQ, run_handler: Run, hangs: bool) -> None:
    handled: list[int] = []

    @rmqd.handler(json=Model)
    async def handle(order: Model) -> None:
        if order.number == 2:
            if hangs:
                await asyncio.Event().wait()
            raise asyncio.CancelledError
        handled.append(order.number)

    send_queue(rocketmq, *({"number": number} for number in range(1, 5)))
    options = {"consume_timeout": "100ms", "concurrency": 1, "max_reconsume_times": 0, **ALL_AT_ONCE}
    result = run_handler(handle, **options)

    assert handled == [1, 3, 4]
    assert [letter.keys for letter in result.dead_letters] == ["order-2"]


def test_a_thread_past_its_deadline_begins_no_further_call(rocketmq: RocketMQ, run_handler: Run) -> None:
    """Another thread handles the later messages. The decision about the first thread's message stays valid."""
    handled: list[int] = []
    threads: list[threading.Thread] = []
    let_go = threading.Event()

    @rmqd.handler(json=Model)
    def handle(order: Model, message: Message, batch: Batch) -> None:
        if order.number == 2:
            threads.append(threading.current_thread())
            batch.dead_letter(message, "known before it hung")
            let_go.wait(10)
        handled.append(order.number)

    send_queue(rocketmq, *({"number": number} for number in range(1, 5)))
    result = run_handler(handle, consume_timeout="100ms", concurrency=2, **ALL_AT_ONCE)
    let_go.set()
    threads[0].join()

    assert handled == [1, 3, 4, 2]
    assert [letter.properties["RMQD_REASON"] for letter in result.dead_letters] == ["known before it hung"]
    assert [attempt.outcome for attempt in result.attempts] == ["acked", "dead_lettered", "acked", "acked"]


@pytest.mark.parametrize("at_once", [True, False], ids=["list", "one"])
def test_the_handler_is_not_called_if_decode_passes_the_deadline(
    rocketmq: RocketMQ, run_handler: Run, at_once: bool
) -> None:
    handled: list[str | None] = []
    threads: list[threading.Thread] = []
    let_go = threading.Event()

    def decode(message: Message) -> str | None:
        if not threads:
            threads.append(threading.current_thread())
            let_go.wait(10)
        return message.keys

    @rmqd.handler(decode=decode)
    def handle(key: str | None) -> None:
        handled.append(key)

    @rmqd.handler(decode=decode)
    def handle_all(keys: list[str | None]) -> None:
        handled.extend(keys)

    send_queue(rocketmq, {})
    run_handler(handle_all if at_once else handle, consume_timeout="100ms", concurrency=2, **ALL_AT_ONCE)
    let_go.set()
    threads[0].join()

    assert handled == ["order-1"]


def test_a_call_that_ignores_its_cancellation_is_the_last_of_its_batch(rocketmq: RocketMQ, run_handler: Run) -> None:
    calls: list[int] = []

    @rmqd.handler(json=Model)
    async def handle(order: Model) -> None:
        calls.append(order.number)
        if calls == [1]:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.Event().wait()

    send_queue(rocketmq, {"number": 1}, {"number": 2})
    run_handler(handle, consume_timeout="100ms", concurrency=1, **ALL_AT_ONCE)

    assert calls == [1, 2, 1]


@pytest.mark.parametrize(
    ("asked", "expected"), [("retry", [1, 2, 2, 3, 4]), ("rollback", [1, 2, 1, 2, 3, 4]), ("commit", [1, 2, 3, 3, 4])]
)
def test_an_orderly_retry_or_rollback_ends_the_batch(
    rocketmq: RocketMQ, run_handler: Run, asked: str, expected: list[int]
) -> None:
    """Committed messages are not rolled back later, and messages whose call did not begin count no attempt."""
    calls: list[int] = []
    attempts: dict[int, int] = {}

    @rmqd.handler(json=Model)
    async def handle(order: Model, message: Message, batch: Batch) -> None:
        calls.append(order.number)
        attempts[order.number] = message.reconsume_times
        if calls == [1, 2] and asked == "retry":
            batch.retry(message)
        elif (asked, calls) in (("rollback", [1, 2]), ("commit", [1, 2, 3])):
            batch.rollback()
        elif order.number in (2, 4):
            batch.commit()

    send_queue(rocketmq, *({"number": number} for number in range(1, 5)))
    run_handler(handle, consume_mode="orderly", auto_commit=False, **ALL_AT_ONCE)

    assert calls == expected
    assert attempts == {1: 0, 2: int(asked == "retry"), 3: 0, 4: 0}


def away(cause: BaseException) -> Exception:
    """A library's error with this cause."""
    error = RuntimeError("the registry does not answer")
    error.__cause__ = cause
    return error


@pytest.mark.parametrize("per_batch", [False, True])
@pytest.mark.parametrize(
    ("made", "outcomes"),
    [
        (lambda: Retry(1), ["retried", "acked"]),
        (lambda: DeadLetter("why"), ["dead_lettered"]),
        (lambda: ConnectionError("registry"), ["retried", "acked"]),
        (lambda: OSError(101, "network unreachable"), ["retried", "acked"]),
        (lambda: away(TimeoutError()), ["retried", "acked"]),
        (lambda: ExceptionGroup("x", [ConnectionError(), KeyError()]), ["retried", "acked"]),
        (lambda: ModuleNotFoundError("No module named 'zstd'"), ["retried", "acked"]),
        (lambda: OSError("not a gzip file"), ["acked"]),
        (lambda: ValueError("no number"), ["acked"]),
    ],
    ids=["Retry", "DeadLetter", "ConnectionError", "OSError", "cause", "group", "module", "no errno", "ValueError"],
)
def test_the_exception_of_decode_decides_whether_the_body_is_invalid(
    rocketmq: RocketMQ, run_handler: Run, made: Callable[[], Exception], outcomes: list[str], per_batch: bool
) -> None:
    """A decision means the same as in the handler, and an unavailable registry is not the message's fault."""
    raised: list[bytes] = []

    def decode(body: bytes) -> str:
        if body == b"odd" and not raised:
            raised.append(body)
            raise made()
        return body.decode()

    handled: list[str] = []

    @rmqd.handler(decode=decode, on_invalid="skip")
    async def handle(order: str) -> None:
        handled.append(order)

    @rmqd.handler(decode=decode, on_invalid="skip")
    async def handle_all(orders: list[str]) -> None:
        handled.extend(orders)

    rocketmq.create_topic("orders")
    for body in ("one", "odd", "two"):
        rocketmq.send("orders", body, keys=body)
    run = run_handler(
        handle_all if per_batch else handle, topic="orders", group="mailer", consume_message_batch_max_size=10
    )
    assert [one.outcome for one in run.attempts_of("odd")] == outcomes
    assert sorted(handled) == (["odd", "one", "two"] if "retried" in outcomes else ["one", "two"])


@pytest.mark.parametrize("result", ["coroutine", Retry], ids=["coroutine", "Retry"])
def test_decode_may_return_a_decision_but_not_a_coroutine(rocketmq: RocketMQ, run_handler: Run, result: Any) -> None:
    async def later(body: bytes) -> None: ...

    calls: list[bytes] = []

    def decode(body: bytes) -> Any:
        calls.append(body)
        return later(body) if result == "coroutine" else result if len(calls) == 1 else body

    @rmqd.handler(decode=decode)
    def handle(order: bytes) -> None:
        assert order == b"one"

    send(rocketmq, "one")
    if result == "coroutine":
        with pytest.raises(HandlerNotAwaitedError, match=r"decode of the handler .* returned a coroutine instead of"):
            run_handler(handle, topic="orders", group="mailer")
    else:
        run = run_handler(handle, topic="orders", group="mailer")
        assert [one.outcome for one in run.attempts] == ["retried", "acked"]


def either(message: Message | None = None) -> Any:
    return message


def test_decode_gets_the_message_if_a_union_of_types_contains_it() -> None:
    message = make_message(b"ada")
    assert decoder_of(Payload("decode", either, "dead_letter")).decode_payload(message) is message


@pytest.mark.parametrize("decode", [lambda message: message.body, lambda msg, schema="": msg.body])
def test_decode_with_an_unannotated_message_is_refused(decode: Any) -> None:
    """It would get the body, and each message would become a dead letter."""
    with pytest.raises(HandlerFormError, match=r"gets the body, .*; expected \(body\), or \(message: Message\)"):
        decoder_of(Payload("decode", decode, "dead_letter"))


def test_an_exception_after_a_decision_is_logged(rocketmq: RocketMQ, run_handler: Run) -> None:
    @rmqd.handler(json=Model)
    def handle(order: Model, message: Message, batch: Batch) -> None:
        batch.ack(message)
        raise ValueError("afterwards")

    send_queue(rocketmq, {"number": 1}, {"number": 2})
    with capture_logs() as logs:
        result = run_handler(handle, **ALL_AT_ONCE)
    assert [attempt.outcome for attempt in result.attempts] == ["acked", "acked"]
    assert [line["error"] for line in logs if line["event"] == "handler.failed"] == ["ValueError('afterwards')"] * 2
