"""Dependencies of typed handlers: objects that are created once per process, and closed at its end."""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from rmqd.own_threads import call_either
from rmqd.typed.annotations import AnnotationError, hint_of
from rmqd.typed.decorator import Depends


class DependencyError(ValueError):
    """A dependency is invalid. The text gives the problem and the expected form."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """A function that creates a parameter's object, and the dependencies of its parameters."""

    make: Callable[..., Any]
    needs: Mapping[str, Dependency]
    takes_options: bool

    def takers_of_options(self) -> Iterator[Callable[..., Any]]:
        """Yield the functions that take the handler's options: this one, and its dependencies' functions."""
        if self.takes_options:
            yield self.make
        for one in self.needs.values():
            yield from one.takers_of_options()


def dependency_of(hint: Any, parameter: inspect.Parameter, behind: tuple[Any, ...] = ()) -> Dependency | None:
    """Return the dependency in the annotation or the default of a parameter, or None. Raises DependencyError.

    `behind` are the functions whose dependency it is.
    """
    if (depends := _depends(hint, parameter)) is None:
        return None
    make = depends.make or (typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint)
    where = f"the parameter {parameter.name} depends on {getattr(make, '__name__', make)!r}"
    if not callable(make):
        raise DependencyError(f"{where}; expected Depends(function) or Depends(class)")
    if make in behind:
        raise DependencyError(f"{where}, which depends on it; expected functions without a circle")
    needs: dict[str, Dependency] = {}
    takes_options = False
    for inner in _parameters(make):
        try:
            found = dependency_of(
                hint_of(make, inner) if inspect.isroutine(make) else inner.annotation, inner, (*behind, make)
            )
        except AnnotationError as error:
            raise DependencyError(f"{where}: {error}; expected a type that can be imported at runtime") from None
        if found is not None:
            needs[inner.name] = found
        elif inner.name == "options":
            takes_options = True
        elif inner.default is inner.empty:
            accepted = "Annotated[..., Depends(...)], the name options, or a default"
            raise DependencyError(f"{where}, whose parameter {inner.name} has no argument; expected {accepted}")
    return Dependency(make, needs, takes_options)


class Dependencies:
    """The objects that one handler depends on, in this process."""

    def __init__(self, wanted: Mapping[str, Dependency], options: Any, *, in_loop: bool) -> None:
        """`wanted` are the dependencies by parameter of the handler. With `in_loop`, synchronous ones run in the event
        loop.
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
        """Close the objects, the last one first. Raises after all are closed."""
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
            return await call_either(function)
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
