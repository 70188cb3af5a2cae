"""Finds hooks: every entry point of `rmqd.hooks` of every distribution, made once for the process.

An entry point is an object, or a class that is made without arguments, with one or more of the methods `before_batch`,
`after_batch` and `wants`.
"""

from __future__ import annotations

import functools
import inspect
from importlib.metadata import EntryPoint
from typing import Any, Final

from rmqd.consumer.hooks import Hook
from rmqd.errors import ConfigError
from rmqd.plugins.entry_points import EntryPointError, import_object, installed, why
from rmqd.typed.callables import is_async, yields

ENTRY_POINT_GROUP: Final = "rmqd.hooks"

_METHODS: Final = ("before_batch", "after_batch", "wants")
_ACCEPTED: Final = "accepted: an object, or a class without arguments, with before_batch, after_batch or wants"


@functools.cache
def load_hooks() -> tuple[Hook, ...]:
    """The hooks of this process, in the order of their names. Raises ConfigError that names the distributions."""
    hooks, problems = [], []
    for name, entry_points in installed(ENTRY_POINT_GROUP).items():
        for entry_point in entry_points:
            owner = entry_point.dist.name if entry_point.dist else "an unknown distribution"
            try:
                hooks.append(_hook(name if len(entry_points) == 1 else f"{name} ({owner})", entry_point))
            except EntryPointError as error:
                problems.append(f"{ENTRY_POINT_GROUP}: the hook {name} of {owner}: {error}")
    if problems:
        raise ConfigError(list[object](problems))
    return tuple(hooks)


def _hook(name: str, entry_point: EntryPoint) -> Hook:
    target: Any = import_object("hook", [entry_point], "")
    if inspect.isclass(target):
        try:
            target = target()
        except (Exception, SystemExit) as error:  # the plugin's constructor may raise anything
            raise EntryPointError(f"{entry_point.value} cannot be made: {why(error)}; {_ACCEPTED}") from error
    methods = {method: getattr(target, method, None) for method in _METHODS}
    if not any(methods.values()):
        raise EntryPointError(f"{entry_point.value} is no hook; {_ACCEPTED}")
    for method, call in methods.items():
        if call is not None and (not callable(call) or is_async(call) or yields(call)):
            raise EntryPointError(f"{entry_point.value} has a {method} that is no plain method; accepted: def {method}")
    return Hook(name, **methods)
