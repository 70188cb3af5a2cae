"""Finds hooks: all entry points `rmqd.hooks` of all distributions, created once per process.

An entry point is an object, or a class that is created without arguments, with one or more of the methods
`before_batch`, `after_batch` and `wants`.
"""

from __future__ import annotations

import functools
import inspect
from importlib.metadata import EntryPoint
from typing import Any, Final

from rmqd.config.model.group import GroupConfig
from rmqd.config.problems import ConfigProblem
from rmqd.consumer.hooks import Hook
from rmqd.consumer.options import ConsumerOptions
from rmqd.errors import ConfigError
from rmqd.plugins.entry_points import EntryPointError, import_object, installed, not_installed, why
from rmqd.typed.callables import is_async, yields

ENTRY_POINT_GROUP: Final = "rmqd.hooks"

_METHODS: Final = ("before_batch", "after_batch", "wants")
_ACCEPTED: Final = "expected an object, or a class without arguments, with before_batch, after_batch or wants"


@functools.cache
def load_hooks() -> tuple[Hook, ...]:
    """Return the hooks of this process in the order of their names. Raises ConfigError that names the distributions."""
    hooks, problems = [], []
    for name, entry_point in _entry_points().items():
        try:
            hooks.append(_hook(name, entry_point))
        except EntryPointError as error:
            problems.append(f"{ENTRY_POINT_GROUP}: the hook {entry_point.name} of {_owner(entry_point)}: {error}")
    if problems:
        raise ConfigError(list[object](problems))
    return tuple(hooks)


def hooks_of(options: ConsumerOptions) -> tuple[Hook, ...]:
    """Return the hooks of a group. Raises ConfigError as `load_hooks` does, and for an unknown name."""
    wanted = options.hooks
    if wanted == "none":
        return ()
    hooks = load_hooks()
    if wanted == "all":
        return hooks
    names = [hook.name for hook in hooks]
    for name in wanted:
        # `hook_problems` found it: it was installed after this process started, or is not installed where Spark runs
        if name not in names:
            problem = f"{not_installed('hook', name, names)}; restart to load a hook that was installed later"
            raise ConfigError([f"groups.{options.group}.hooks: {problem}"])
    return tuple(hook for hook in hooks if hook.name in wanted)


def hook_problems(group: str, settings: GroupConfig) -> list[ConfigProblem]:
    """Return problems for hooks that a group names but that are not installed. Imports none of them."""
    if isinstance(settings.hooks, str):
        return []
    names = _entry_points()
    return [
        settings.problem(group, ("hooks", index), str(not_installed("hook", name, names)))
        for index, name in enumerate(settings.hooks)
        if name not in names
    ]


def _entry_points() -> dict[str, EntryPoint]:
    """Return all hooks by their names here, with the distribution if several have the same name."""
    return {
        name if len(found) == 1 else f"{name} ({_owner(one)})": one
        for name, found in installed(ENTRY_POINT_GROUP).items()
        for one in found
    }


def _owner(entry_point: EntryPoint) -> str:
    return entry_point.dist.name if entry_point.dist else "an unknown distribution"


def _hook(name: str, entry_point: EntryPoint) -> Hook:
    target: Any = import_object("hook", [entry_point], "")
    if inspect.isclass(target):
        try:
            target = target()
        except (Exception, SystemExit) as error:  # the plugin's constructor may raise anything
            raise EntryPointError(f"{entry_point.value} cannot be made: {why(error)}; {_ACCEPTED}") from error
    methods = {method: getattr(target, method, None) for method in _METHODS}
    if not any(methods.values()):
        raise EntryPointError(f"{entry_point.value} is not a hook; {_ACCEPTED}")
    for method, call in methods.items():
        if call is not None and (not callable(call) or is_async(call) or yields(call)):
            raise EntryPointError(
                f"{entry_point.value} has a {method} that is not a plain method; expected def {method}"
            )
    return Hook(name, **methods)
