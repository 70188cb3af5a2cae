"""Middleware: functions around every call of a group's handler, in the order of the configuration.

A middleware takes the batch and `call_next`, and calls this next middleware or handler with the batch. It is a
function, or a class that is created without arguments, with a method `__call__` and optionally `start` and `stop`. It
is asynchronous around an asynchronous handler, and synchronous around a synchronous one. Its return value is ignored,
so this module checks that neither it nor the handler left a coroutine that was never awaited.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import replace
from typing import Any

from rmqd.consumer.handling.threads import HandlerNotAwaitedError, checked
from rmqd.handler_api import Batch
from rmqd.loaded_handler import LoadedHandler
from rmqd.plugins.entry_points import why
from rmqd.plugins.form import Fault, PluginFaultError, refuse_unbound
from rmqd.plugins.lifecycle import with_parts
from rmqd.plugins.lookup import object_at
from rmqd.typed.callables import is_async, room, yields

_ACCEPTED = "a function of (batch, call_next), or a class without arguments whose instances are called that way"


def middleware_faults(names: Sequence[str]) -> Iterator[Fault]:
    """Yield the faults of middleware that are visible without creating it. Each is imported."""
    for index, name in enumerate(names):
        try:
            _find(name)
        except PluginFaultError as error:
            yield from (Fault(("middleware", index), fault.message) for fault in error.faults)


def with_middleware(handler: LoadedHandler, names: Sequence[str]) -> LoadedHandler:
    """Return the handler inside its middleware, the first one outermost. Raises PluginFaultError."""
    made = [_make(index, name, in_loop=handler.is_async) for index, name in enumerate(names)]
    handle = checked(handler).handle if made else handler.handle
    for name, call in zip(reversed(names), reversed(made), strict=True):
        handle = _around_async(name, call, handle) if handler.is_async else _around(call, handle)
    parts = [(getattr(one, "start", None), getattr(one, "stop", None)) for one in made]
    return with_parts(replace(handler, handle=handle), parts)


def _find(name: str) -> Any:
    target: Any = object_at(name)
    refuse_unbound(name, target, "name the class: {owner}")
    call, arguments = target, 2
    if inspect.isclass(target):
        call, arguments = next((vars(one)["__call__"] for one in target.__mro__ if "__call__" in vars(one)), None), 3
    try:
        required, most = room(call) if callable(call) else (0, 0)
    except ValueError as error:
        raise PluginFaultError(Fault((), f"{name} {error}; expected {_ACCEPTED}")) from None
    if required > arguments or most < arguments or yields(call):
        raise PluginFaultError(Fault((), f"{name} cannot be called with (batch, call_next); expected {_ACCEPTED}"))
    return target


def _make(index: int, name: str, *, in_loop: bool) -> Any:
    made = _find(name)
    if inspect.isclass(made):
        try:
            made = made()
        except (Exception, SystemExit) as error:
            fault = Fault(("middleware", index), f"the constructor of {name} failed: {why(error)}")
            raise PluginFaultError(fault) from error
    if is_async(made) != in_loop:
        kind, other = ("async def", "def") if in_loop else ("def", "async def")
        message = f"{name} is written with {other}, but the handler with {kind}; expected {kind}"
        raise PluginFaultError(Fault(("middleware", index), message))
    return made


def _around(call: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    def call_next(batch: Batch) -> Any:
        left = batch.undecided()  # decisions of this middleware do not concern the next one
        return inner(left) if left else None

    @functools.wraps(inner)
    def handle(batch: Batch) -> Any:
        return call(batch, call_next)

    return handle


async def _nothing() -> None:
    """A call without messages."""


def _around_async(name: str, call: Callable[..., Any], inner: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(inner)
    async def handle(batch: Any) -> Any:
        given: list[Coroutine[Any, Any, Any]] = []

        def call_next(batch: Batch) -> Any:
            left = batch.undecided()
            given.append(inner(left) if left else _nothing())
            return given[-1]

        result = await call(batch, call_next)
        forgotten = [one for one in given if inspect.getcoroutinestate(one) == inspect.CORO_CREATED]
        for one in forgotten:
            one.close()  # it never started; Python would warn about it elsewhere
        if forgotten:
            raise HandlerNotAwaitedError(
                f"the middleware {name} called call_next without awaiting it, so the handler handled nothing; write "
                "`await call_next(batch)`"
            )
        return result

    return handle
