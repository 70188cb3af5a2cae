"""The types that annotations of a function's parameters stand for."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any


class AnnotationError(ValueError):
    """An annotation is text that cannot be evaluated."""


def hint_of(target: Callable[..., Any], parameter: inspect.Parameter, names: Mapping[str, Any] | None = None) -> Any:
    """The type in a parameter's annotation, with what `Annotated` adds to it; `Parameter.empty` without annotation.

    `names` are further ones that it may use, beside the globals of the function's module. Other annotations of the
    function are left alone: they may use names that are imported for type checkers only. Raises AnnotationError.
    """
    return _evaluated(target, parameter.name, parameter.annotation, names)


def returned_by(function: Callable[..., Any]) -> Any:
    """The type that a function says to return; Any if it does not say. Raises AnnotationError."""
    hint = _evaluated(function, "return", inspect.signature(function).return_annotation)
    return Any if hint is inspect.Signature.empty else hint


def _evaluated(target: Callable[..., Any], name: str, hint: Any, names: Mapping[str, Any] | None = None) -> Any:
    if hint is inspect.Parameter.empty:
        return hint
    function = inspect.unwrap(target if inspect.isroutine(target) else target.__call__)  # type: ignore[operator]
    holder = SimpleNamespace(__annotations__={name: hint})
    known = getattr(function, "__globals__", {})
    try:
        return typing.get_type_hints(holder, known, dict(names or {}), include_extras=True)[name]
    except Exception as error:
        raise AnnotationError(f"the annotation {hint!r} of {name} cannot be evaluated: {error}") from error
