"""A typed handler with a wrong signature is refused at the start, with the expected signature."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Annotated, Any

import pydantic
import pytest

import rmqd
from rmqd import Batch, Message
from rmqd.errors import ConfigError
from rmqd.handler_api.typed.decoders import decoder_of
from rmqd.handler_api.typed.signatures import Payload
from rmqd.plugins.handler_plugin import HandlerPlugin
from rmqd.plugins.option_form import PluginFaultError
from rmqd.testing import RocketMQ, RunResult, make_message


class Order(pydantic.BaseModel):
    """An order."""

    number: int


class Invoice(pydantic.BaseModel):
    """Something else."""


def no_payload() -> None: ...
def other_type(order: Invoice) -> None: ...
def other_list(orders: list[Invoice]) -> None: ...
def a_batch(batch: Batch) -> None: ...
def unknown_type(order: Nowhere) -> None: ...  # type: ignore[name-defined]  # noqa: F821
def unclear(order: Order, pool: int) -> None: ...
def third(order: Order, message, pool) -> None: ...  # type: ignore[no-untyped-def]
def message_of_many(orders: list[Order], message: Message) -> None: ...
def before_slash(order: Order, message: Message, /) -> None: ...
def generator(order: Order) -> Any:
    yield


def test_a_wrong_signature_is_refused_with_the_expected_signature() -> None:
    wrong: list[tuple[Callable[..., Any], str]] = [
        (no_payload, "takes no payload; expected a function whose first parameter is the payload"),
        (other_type, "order is annotated as Invoice, but the decorator gives Order; expected order: Order, or list"),
        (other_list, r"orders is annotated as list\[.*Invoice\], but the decorator gives Order"),
        (a_batch, "batch is annotated as Batch, but the decorator gives Order"),
        (
            unknown_type,
            "the annotation 'Nowhere' of order cannot be evaluated: .*; expected a type that can be imported",
        ),
        (unclear, "pool has an annotation that rmqd does not support; expected Message for the payload's .*, Batch"),
        (third, "pool has no annotation; expected Message"),
        (message_of_many, r"message has an annotation that rmqd does not support; expected list\[Message\] for"),
        (before_slash, "message is positional-only"),
        (generator, "with yield, which would never run"),
    ]
    for function, said in wrong:
        with pytest.raises(PluginFaultError, match=said):
            HandlerPlugin.of("shop:handle", rmqd.handler(json=Order)(function))


@pytest.mark.parametrize("kind", [staticmethod, classmethod])
def test_the_decorator_may_be_above_a_method_without_self(
    rocketmq: RocketMQ, run_handler: Callable[..., RunResult], kind: Callable[[Any], Any]
) -> None:
    seen: list[tuple[int, str]] = []

    def of_class(_owner: type, order: Order, message) -> None:  # type: ignore[no-untyped-def]
        seen.append((order.number, message.topic))

    def alone(order: Order, message) -> None:  # type: ignore[no-untyped-def]
        seen.append((order.number, message.topic))

    handle = rmqd.handler(json=Order)(kind(alone if kind is staticmethod else of_class))
    rocketmq.send("orders", '{"number": 1}')
    run_handler(type("Handler", (), {"handle": handle}), topic="orders", group="mailer")
    assert seen == [(1, "orders")]


def test_a_wrapper_with_any_keywords_gets_the_arguments_of_its_function(
    rocketmq: RocketMQ, run_handler: Callable[..., RunResult]
) -> None:
    seen: list[tuple[int, str]] = []

    def handle(order: Order, message: Message) -> None:
        seen.append((order.number, message.topic))

    @functools.wraps(handle)
    def logged(order: Order, **arguments: Any) -> None:
        handle(order, **arguments)

    rocketmq.send("orders", '{"number": 1}')
    run_handler(rmqd.handler(json=Order)(logged), topic="orders", group="mailer")
    assert seen == [(1, "orders")]


def test_an_object_that_is_not_a_type_is_refused_as_payload_type() -> None:
    with pytest.raises(PluginFaultError, match=r"json=<object .* is not a valid payload type.*expected a pydantic"):
        HandlerPlugin.of("shop:handle", rmqd.handler(json=object())(other_type))


def test_the_decorator_refuses_wrong_arguments() -> None:
    with pytest.raises(TypeError, match=r"got nothing; expected one of json="):
        rmqd.handler()
    with pytest.raises(TypeError, match=r"got a positional argument; expected one of json="):
        rmqd.handler(other_type)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got json='Order', a text; expected the type itself"):
        rmqd.handler(json="Order")
    with pytest.raises(TypeError, match=r"got xml=; expected one of json="):
        rmqd.handler(xml=Order)
    with pytest.raises(TypeError, match="expected a function or a method"):
        rmqd.handler(json=Order)(Order)
    with pytest.raises(ValueError, match=r"'drop' is not a valid on_invalid; expected dead_letter \| retry \| skip"):
        rmqd.handler(json=Order, on_invalid="drop")  # type: ignore[arg-type]


def test_the_options_of_a_typed_function_are_checked(run_handler: Callable[..., object]) -> None:
    @rmqd.handler(json=Order)
    def handle(order: Order, options: Order) -> None: ...

    with pytest.raises(ConfigError, match=r"groups.mailer.handler.options.number: missing"):
        run_handler(handle, topic="orders", group="mailer")


class Codec:
    """Decodes messages in each form that a callable may have."""

    def __init__(self, message: Message | None = None) -> None:
        self.message = message

    def of_message(self, message: Message) -> Any:
        return message

    def of_either(self, schema: str, message: Annotated[Message, "with its schema"]) -> Any:
        return message

    def __call__(self, message: Message) -> Any:
        return message

    async def later(self, message: Message) -> Any: ...
    def both(self, message: Message, schema: str) -> Any: ...


class OfMessage(Codec):
    """A payload whose constructor decodes the message."""

    def __init__(self, message: Message) -> None:
        super().__init__(message)


class Later:
    """Its instances behave like coroutine functions."""

    async def __call__(self, body: bytes) -> Any: ...


@pytest.mark.parametrize(
    "decode",
    [Codec().of_message, functools.partial(Codec().of_either, "v1"), Codec(), OfMessage],
    ids=["method", "partial", "object", "class"],
)
def test_each_form_of_decode_gets_the_message_if_it_is_annotated_so(decode: Any) -> None:
    message = make_message(b"ada")
    payload = decoder_of(Payload("decode", decode, "dead_letter")).decode_payload(message)
    assert (payload.message if isinstance(payload, OfMessage) else payload) is message


@pytest.mark.parametrize(
    ("decode", "said"),
    [
        (Later(), "is not a synchronous function"),
        (functools.partial(Later()), "is not a synchronous function"),
        (Codec().later, "is not a synchronous function"),
        (generator, "is not a synchronous function"),
        (Codec().both, "takes 2 arguments; expected a function of"),
        (Codec.of_message, r"decode=Codec.of_message is a method without its object; expected .*Codec\(\).of_message"),
    ],
)
def test_a_wrong_decode_function_is_refused_at_the_start(decode: Any, said: str) -> None:
    with pytest.raises(PluginFaultError, match=said):
        HandlerPlugin.of("shop:handle", rmqd.handler(decode=decode)(no_payload))
