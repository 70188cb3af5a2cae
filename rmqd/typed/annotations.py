"""The types in the annotations of a function's parameters."""

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
    """Return the type in a parameter's annotation, including the extras of `Annotated`; `Parameter.empty` without
    annotation.

    Besides the globals of the function's module, the annotation may use `names`. The function's other annotations are
    not evaluated, because they may use names that are only imported for type checkers. Raises AnnotationError.
    """
    return _evaluated(target, parameter.name, parameter.annotation, names)


def without_extras(hint: Any) -> Any:
    """Return the type in a hint, without the extras of `Annotated`."""
    return typing.get_args(hint)[0] if typing.get_origin(hint) is Annotated else hint


def returned_by(function: Callable[..., Any]) -> Any:
    """Return the declared return type of a callable, or a class itself; Any if not declared. Raises AnnotationError."""
    if inspect.isclass(function):
        return function
    try:
        hint = inspect.signature(function).return_annotation
    except (ValueError, TypeError):  # a builtin without a signature
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
