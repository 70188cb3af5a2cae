"""The types that annotations of a function's parameters stand for."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Annotated, Any

from rmqd.typed.callables import function_of


class AnnotationError(ValueError):
    """An annotation is text that cannot be evaluated."""


def hint_of(target: Callable[..., Any], parameter: inspect.Parameter, names: Mapping[str, Any] | None = None) -> Any:
    """The type in a parameter's annotation, with what `Annotated` adds to it; `Parameter.empty` without annotation.

    `names` are further ones that it may use, beside the globals of the function's module. Other annotations of the
    function are left alone: they may use names that are imported for type checkers only. Raises AnnotationError.
    """
    return _evaluated(target, parameter.name, parameter.annotation, names)


def without_extras(hint: Any) -> Any:
    """The type in a hint, without what `Annotated` adds to it."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def returned_by(function: Callable[..., Any]) -> Any:
    """The type that a callable says to return, a class itself; Any if it does not say. Raises AnnotationError."""
    if inspect.isclass(function):
        return function
    try:
        hint = inspect.signature(function).return_annotation
    except (ValueError, TypeError):  # a builtin without one
        return Any
    return Any if hint is inspect.Signature.empty else _evaluated(function, "return", hint)


def _evaluated(target: Callable[..., Any], name: str, hint: Any, names: Mapping[str, Any] | None = None) -> Any:
    if hint is inspect.Parameter.empty:
        return hint
    function = inspect.unwrap(function_of(target))
    holder = SimpleNamespace(__annotations__={name: hint})
    known = getattr(function, "__globals__", {})
    try:
        return typing.get_type_hints(holder, known, dict(names or {}), include_extras=True)[name]
    except Exception as error:
        raise AnnotationError(f"the annotation {hint!r} of {name} cannot be evaluated: {error}") from error
