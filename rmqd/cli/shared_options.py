"""Options that several commands share: declared once, and passed to each command as one value."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def with_options(
    name: str, options: Callable[..., None], value: Callable[..., object]
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the parameters of `options` as options, after its own.

    The command gets the result of `value`, which has the same parameters, as its parameter `name`.
    """
    shared = _parameters(options)

    def decorate(command: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(command)
        def run(**given: Any) -> None:
            command(**{name: value(**{one: given.pop(one) for one in shared})}, **given)

        parameters = _parameters(command, besides=name) | shared
        # typer reads a command's options from its function's signature and annotations
        run.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        run.__annotations__ = {one: parameter.annotation for one, parameter in parameters.items()}
        return run

    return decorate


def _parameters(function: Callable[..., None], besides: str = "") -> dict[str, inspect.Parameter]:
    # the type of the passed value may be imported only when the command runs
    function.__annotations__.pop(besides, None)
    hints = get_type_hints(function, include_extras=True)
    return {
        name: one.replace(annotation=hints[name], kind=inspect.Parameter.KEYWORD_ONLY)
        for name, one in inspect.signature(function).parameters.items()
        if name != besides
    }
