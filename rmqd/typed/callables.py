"""Inspects callables: functions, methods, partials, classes and objects with `__call__`.

Handlers, decoders and all other plugins use this module, so that they accept the same forms.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Collection
from typing import Any, Final

_BY_PLACE: Final = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def function_of(target: Callable[..., Any]) -> Any:
    """Return the routine that runs when a callable is called: for a class its constructor, for an object its
    `__call__`.
    """
    while isinstance(target, functools.partial):
        target = target.func
    if inspect.isclass(target):
        return target.__init__ if inspect.isfunction(target.__init__) else target.__new__
    return target if inspect.isroutine(target) else getattr(target, "__call__", target)  # noqa: B004 - its code is needed


def is_async(target: Callable[..., Any]) -> bool:
    """Return whether a call returns a coroutine."""
    # the target itself may be an AsyncMock
    return any(inspect.iscoroutinefunction(one) for one in (target, function_of(target)))


def yields(target: Callable[..., Any]) -> bool:
    """Return whether the callable is a generator function: calling it runs none of its code."""
    function = function_of(target)
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def parameters_of(target: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that remain for a call. A builtin without a signature counts as having one positional
    parameter.
    """
    try:
        return list(inspect.signature(target).parameters.values())
    except (ValueError, TypeError):
        return [inspect.Parameter("value", inspect.Parameter.POSITIONAL_ONLY)]


def room(target: Callable[..., Any], named: Collection[str] = ()) -> tuple[int, int]:
    """Return how many positional arguments a callable needs, and how many it takes.

    Raises ValueError if it needs keyword-only arguments other than `named`.
    """
    parameters = parameters_of(target)
    positional = [one for one in parameters if one.kind in _BY_PLACE]
    required = [one for one in positional if one.default is one.empty]
    missing = [
        one.name
        for one in parameters
        if one.kind is one.KEYWORD_ONLY and one.default is one.empty and one.name not in named
    ]
    if missing:
        raise ValueError(f"needs keyword arguments that are not passed: {', '.join(missing)}")
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return len(required), max(len(positional), 1) if takes_any else len(positional)


def options_parameter(target: Callable[..., Any], place: int) -> inspect.Parameter | None:
    """Return the parameter for the options: the one called `options`, or the one at `place` if it has no default.

    `place` counts from 0; the parameters before it have other arguments. A default is the author's own value.
    """
    bound = target.keywords if isinstance(target, functools.partial) else {}
    parameters = [one for one in parameters_of(target) if one.name not in bound]
    positional = [one for one in parameters if one.kind in _BY_PLACE]
    for one in (*positional[place:], *(one for one in parameters if one.kind is one.KEYWORD_ONLY)):
        if one.name == "options" and (one.kind is not one.POSITIONAL_ONLY or one is positional[place]):
            return one
    at_place = positional[place] if len(positional) > place else None
    return None if at_place is None or at_place.default is not at_place.empty else at_place


def owner_of_unbound(target: Any) -> str:
    """Return the class name of a method that was taken from its class, and so lacks its object; "" otherwise."""
    function = inspect.unwrap(target) if inspect.isroutine(target) and not inspect.ismethod(target) else None
    owner, _, name = getattr(function, "__qualname__", "").rpartition(".")
    if not inspect.isfunction(function) or not owner or owner.endswith("<locals>"):
        return ""
    holder: Any = sys.modules.get(function.__module__)
    for part in owner.split("."):
        holder = getattr(holder, part, None)
    if isinstance(holder, type):
        return "" if isinstance(inspect.getattr_static(holder, name, None), staticmethod) else owner
    first = next(iter(parameters_of(target)), None)  # a class inside a function cannot be looked up
    return owner if first is not None and first.name == "self" else ""
