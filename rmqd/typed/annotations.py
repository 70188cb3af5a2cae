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
    hint = parameter.annotation
    if hint is parameter.empty:
        return hint
    function = inspect.unwrap(target if inspect.isroutine(target) else target.__call__)  # type: ignore[operator]
    holder = SimpleNamespace(__annotations__={parameter.name: hint})
    known = getattr(function, "__globals__", {})
    try:
        return typing.get_type_hints(holder, known, dict(names or {}), include_extras=True)[parameter.name]
    except Exception as error:
        raise AnnotationError(f"the annotation {hint!r} of {parameter.name} cannot be evaluated: {error}") from error
