"""Dependencies of typed handlers: objects that are created once per process, and closed at its end.

`call_form_of` determines the argument for each parameter of a typed handler.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from rmqd.handler_api.batch import Batch
from rmqd.handler_api.typed.signatures import (
    POSITIONAL_KINDS,
    AnnotationError,
    Depends,
    TypedHandler,
    is_async,
    parameters_of,
    type_hint_of,
    without_extras,
)
from rmqd.offset_stores import offset_connection
from rmqd.runtime.own_threads import call_sync_or_async
from rmqd.wire.messages.message import Message


class HandlerFormError(ValueError):
    """A typed handler or its dependency cannot be called. The text gives the problem and the expected form."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A function that creates a parameter's object, and the dependencies of its parameters."""

    make: Callable[..., Any]
    needs: Mapping[str, Dependency]
    takes_options: bool

    def functions_with_options(self) -> Iterator[Callable[..., Any]]:
        """Yield the functions that take the handler's options: this one, and its dependencies' functions."""
        if self.takes_options:
            yield self.make
        for one in self.needs.values():
            yield from one.functions_with_options()


def dependency_of(hint: Any, parameter: inspect.Parameter, behind: tuple[Any, ...] = ()) -> Dependency | None:
    """Return the dependency that a parameter's annotation or default declares, or None. Raises HandlerFormError.

    `behind` has the functions that need this dependency, directly or indirectly, to detect circular dependencies.
    """
    if (depends := _depends(hint, parameter)) is None:
        return None
    make = depends.make or (typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint)
    where = f"the parameter {parameter.name} depends on {getattr(make, '__name__', make)!r}"
    if not callable(make):
        raise HandlerFormError(f"{where}; expected Depends(function) or Depends(class)")
    if make in behind:
        raise HandlerFormError(f"{where}, which depends on itself; expected no circular dependencies")
    needs: dict[str, Dependency] = {}
    takes_options = False
    for inner in _parameters(make):
        try:
            found = dependency_of(
                type_hint_of(make, inner) if inspect.isroutine(make) else inner.annotation, inner, (*behind, make)
            )
        except AnnotationError as error:
            raise HandlerFormError(f"{where}: {error}; expected a type that can be imported at runtime") from None
        if found is not None:
            needs[inner.name] = found
        elif inner.name == "options":
            takes_options = True
        elif inner.default is inner.empty:
            accepted = "Annotated[..., Depends(...)], the name options, or a default"
            raise HandlerFormError(f"{where}, whose parameter {inner.name} gets no value; expected {accepted}")
    return Dependency(make, needs, takes_options)


class Dependencies:
    """The objects that one handler depends on, in this process."""

    def __init__(self, wanted: Mapping[str, Dependency], options: Any, *, in_loop: bool) -> None:
        """`wanted` has the dependency for each parameter of the handler. With `in_loop`, synchronous functions run in
        the event loop, else in a thread.
        """
        self.values: dict[str, Any] = {}
        self._wanted = wanted
        self._options = options
        self._in_loop = in_loop
        self._stack = AsyncExitStack()
        self._made: dict[Callable[..., Any], Any] = {}

    async def open(self) -> None:
        """Create the objects. If a function raises, the objects created so far are closed."""
        try:
            for name, dependency in self._wanted.items():
                self.values[name] = await self._object(dependency)
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        """Close the objects in reverse order. If closing an object fails, raise after all objects are closed."""
        await self._stack.aclose()

    async def _object(self, dependency: Dependency) -> Any:
        make = dependency.make
        if make not in self._made:
            named = {name: await self._object(inner) for name, inner in dependency.needs.items()}
            if dependency.takes_options:
                named["options"] = self._options
            self._made[make] = await self._make(make, named)
        return self._made[make]

    async def _make(self, make: Callable[..., Any], named: dict[str, Any]) -> Any:
        inner = inspect.unwrap(make)
        is_decorated = inner is not make  # for instance with contextlib's decorators
        if inspect.isasyncgenfunction(inner):
            opened: AbstractAsyncContextManager[Any] = (make if is_decorated else asynccontextmanager(make))(**named)
            return await self._stack.enter_async_context(opened)
        if inspect.isgeneratorfunction(inner):
            context = (make if is_decorated else contextmanager(make))(**named)
            value = await self._call(context.__enter__)
            self._stack.push_async_callback(self._call, functools.partial(context.__exit__, None, None, None))
            return value
        value = await self._call(functools.partial(make, **named))
        close = getattr(value, "aclose", None) or getattr(value, "close", None)
        if callable(close):
            self._stack.push_async_callback(self._call, close)
        return value

    async def _call(self, function: Callable[[], Any]) -> Any:
        if not self._in_loop:
            return await call_sync_or_async(function)
        result = function()
        return await result if isinstance(result, Awaitable) else result


def _depends(hint: Any, parameter: inspect.Parameter) -> Depends | None:
    extras = typing.get_args(hint)[1:] if typing.get_origin(hint) is Annotated else ()
    for one in (*extras, parameter.default):
        if isinstance(one, Depends):
            return one
        if one is Depends:
            return Depends()
    return None


def _parameters(make: Callable[..., Any]) -> Iterator[inspect.Parameter]:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (ValueError, TypeError):  # a builtin without a signature
        return
    yield from (one for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD))


ArgumentSource = Literal["message", "messages", "batch", "options", "connection"]
"""The value of a parameter. `message`: the payload's message; `messages`: the payloads' messages; `batch`: a Batch of
these messages; `options`: the handler's options; `connection`: the connection of the call's transaction.
"""

_EMPTY: Final = inspect.Parameter.empty
_LISTS: Final = (list, Sequence)


@dataclass(frozen=True, slots=True)
class CallForm:
    """How a function is called: the payload is the first argument, the others are keyword arguments."""

    per_batch: bool
    """Whether the function takes the list of a batch's payloads, not a single payload."""
    others: Mapping[str, ArgumentSource]
    dependencies: Mapping[str, Dependency]

    def parameter_for(self, source: ArgumentSource) -> str | None:
        """Return the name of the parameter with this source; None if no parameter has it."""
        return next((name for name, one in self.others.items() if one == source), None)


def call_form_of(handler: TypedHandler, target: Any, *, is_bound: bool) -> CallForm:
    """Return how to call a typed handler. `target` is the type of decoded bodies; Any if unknown.

    Without `is_bound`, the handler's first parameter is `self`, which is skipped. Raises HandlerFormError.
    """
    parameters = parameters_of(handler.function)
    if not is_bound:
        parameters = parameters[1:]
    if not parameters or parameters[0].kind not in POSITIONAL_KINDS:
        raise HandlerFormError(
            "the typed handler takes no payload; expected a function whose first parameter is the payload"
        )
    payload, *rest = parameters
    per_batch = _takes_list(handler, payload, target)
    dependencies = {one.name: found for one in rest if (found := _dependency(handler, one)) is not None}
    rest = [one for one in rest if one.name not in dependencies]
    others = dict(_others(handler, rest, per_batch))
    for name in [name for name, one in dependencies.items() if one.make is offset_connection]:
        if not is_async(handler.function):
            what = f"the parameter {name} gets the connection of the group's offset store"
            raise HandlerFormError(f"{what}, which only async handlers can use; expected async def")
        others[name] = "connection"  # each call has a different connection
        del dependencies[name]
    return CallForm(per_batch, others, dependencies)


def type_name(target: Any) -> str:
    """Return a type as it is written in source: a union as its members, `Annotated` without its extras."""
    origin, arguments = typing.get_origin(target), typing.get_args(target)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin in (typing.Union, types.UnionType):
        return " | ".join("None" if one is types.NoneType else type_name(one) for one in arguments)
    return target.__name__ if inspect.isclass(target) and not typing.get_args(target) else str(target)


def _takes_list(handler: TypedHandler, parameter: inspect.Parameter, target: Any) -> bool:
    hint = _hint(handler, parameter)
    if hint is _EMPTY or hint is Any or hint == target:
        return False
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in _LISTS and (target is Any or _fits(target, arguments[0])):
        return True
    if _fits(target, hint):
        return False
    what = (
        f"the parameter {parameter.name} is annotated as {type_name(hint)}, but the decorator gives {type_name(target)}"
    )
    accepted = f"{parameter.name}: {type_name(target)}, or list[{type_name(target)}] for the payloads of a batch"
    raise HandlerFormError(f"{what}; expected {accepted}")


def takes_batch(function: Callable[..., Any], parameter: inspect.Parameter) -> bool:
    """Return whether a parameter may receive a Batch: its annotation allows it, or cannot be judged."""
    try:
        hint = without_extras(type_hint_of(function, parameter))
    except AnnotationError:
        return True
    kind = typing.get_origin(hint) or hint
    is_known = hint not in (_EMPTY, Any) and inspect.isclass(kind) and not getattr(kind, "_is_protocol", False)
    return not is_known or kind in Batch.__mro__ or issubclass(kind, (Batch, list, tuple, types.UnionType))


def _fits(target: Any, hint: Any) -> bool:
    """Return whether a value of type `target` is valid for a parameter with this hint."""
    if hint is Any or target is Any or hint == target:
        return True
    is_plain = inspect.isclass(hint) and inspect.isclass(target) and not typing.get_args(hint)
    return is_plain and not typing.get_args(target) and issubclass(target, hint)


def _others(
    handler: TypedHandler, parameters: list[inspect.Parameter], per_batch: bool
) -> Iterator[tuple[str, ArgumentSource]]:
    for place, parameter in enumerate(parameters):
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        source = _source(handler, parameter, per_batch, is_second=place == 0)
        if source is not None:
            if parameter.kind is parameter.POSITIONAL_ONLY:
                raise HandlerFormError(f"the parameter {parameter.name} is positional-only; remove the `/`")
            yield parameter.name, source
        elif parameter.default is _EMPTY:
            raise HandlerFormError(_unclear(parameter, per_batch))


def _source(
    handler: TypedHandler, parameter: inspect.Parameter, per_batch: bool, *, is_second: bool
) -> ArgumentSource | None:
    if parameter.name == "options":
        return "options"
    hint = _hint(handler, parameter)
    if parameter.name == "batch" if hint is _EMPTY else inspect.isclass(hint) and issubclass(hint, Batch):
        return "batch"
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if per_batch and ((hint is _EMPTY and is_second) or (origin in _LISTS and arguments == (Message,))):
        return "messages"
    if not per_batch and (hint is Message or (hint is _EMPTY and is_second and parameter.default is _EMPTY)):
        return "message"
    return None


def _unclear(parameter: inspect.Parameter, per_batch: bool) -> str:
    message = "list[Message] for the messages of the payloads" if per_batch else "Message for the payload's message"
    lacks = "no annotation" if parameter.annotation is _EMPTY else "an annotation that rmqd does not support"
    others = "Batch for the messages of the call, Annotated[..., Depends(...)], the name options, or a default"
    return f"the parameter {parameter.name} has {lacks}; expected {message}, {others}"


def _dependency(handler: TypedHandler, parameter: inspect.Parameter) -> Dependency | None:
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        return None
    return dependency_of(_whole_hint(handler, parameter), parameter)


def _whole_hint(handler: TypedHandler, parameter: inspect.Parameter) -> Any:
    try:
        return type_hint_of(handler.function, parameter, handler.names)
    except AnnotationError as error:
        raise HandlerFormError(f"{error}; expected a type that can be imported at runtime") from None


def _hint(handler: TypedHandler, parameter: inspect.Parameter) -> Any:
    return without_extras(_whole_hint(handler, parameter))
