"""A typed handler that cannot be called as it is written is refused at the start, with what to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pydantic
import pytest

import rmqd
from rmqd import Batch, Message
from rmqd.errors import ConfigError
from rmqd.plugins.form import PluginFaultError
from rmqd.plugins.handler_plugin import HandlerPlugin


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


def test_a_wrong_form_is_told_with_what_is_accepted() -> None:
    wrong: list[tuple[Callable[..., Any], str]] = [
        (no_payload, "takes no payload; accepted: a function whose first parameter is one"),
        (other_type, "order is annotated as Invoice, and the decorator makes Order; accepted: order: Order, or list"),
        (other_list, r"orders is annotated as list\[.*Invoice\], and the decorator makes Order"),
        (a_batch, "batch is annotated as Batch, and the decorator makes Order"),
        (
            unknown_type,
            "the annotation 'Nowhere' of order cannot be evaluated: .*; accepted: a type that can be imported",
        ),
        (unclear, "pool has an annotation that says nothing to rmqd; accepted: Message for that of the payload, Batch"),
        (third, "pool has no annotation; accepted: Message"),
        (message_of_many, r"message has an annotation that says nothing to rmqd; accepted: list\[Message\] for"),
        (before_slash, "message stands before a `/`"),
        (generator, "with yield, which would never run"),
    ]
    for function, said in wrong:
        with pytest.raises(PluginFaultError, match=said):
            HandlerPlugin.of("shop:handle", rmqd.handler(json=Order)(function))


def test_what_is_no_type_is_no_payload() -> None:
    with pytest.raises(PluginFaultError, match=r"json=<object .* is no type of a payload.*accepted: a pydantic model"):
        HandlerPlugin.of("shop:handle", rmqd.handler(json=object())(other_type))


def test_the_decorator_names_its_arguments() -> None:
    with pytest.raises(TypeError, match=r"got nothing; accepted: one of json="):
        rmqd.handler()
    with pytest.raises(TypeError, match=r"got something without a name; accepted: one of json="):
        rmqd.handler(other_type)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"got json='Order', a text; accepted: the type itself"):
        rmqd.handler(json="Order")
    with pytest.raises(TypeError, match=r"got xml=; accepted: one of json="):
        rmqd.handler(xml=Order)
    with pytest.raises(TypeError, match="marks a function or a method"):
        rmqd.handler(json=Order)(Order)
    with pytest.raises(ValueError, match=r"on_invalid is 'drop'; accepted: dead_letter \| retry \| skip"):
        rmqd.handler(json=Order, on_invalid="drop")  # type: ignore[arg-type]


def test_the_options_of_a_typed_function_are_checked(run_handler: Callable[..., object]) -> None:
    @rmqd.handler(json=Order)
    def handle(order: Order, options: Order) -> None: ...

    with pytest.raises(ConfigError, match=r"groups.mailer.handler.options.number: missing"):
        run_handler(handle, topic="orders", group="mailer")
