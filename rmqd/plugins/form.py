"""Checks that all kinds of plugin share: the number of arguments, the model of the options, the options themselves.

A problem with a plugin is a Fault. Its path begins below the key that names the plugin, such as `handler`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rmqd.config.model.errors import model_at
from rmqd.config.model.kinds import Substituted, as_list
from rmqd.config.problems import Path, unknown
from rmqd.plugins.unknown_options import unknown_keys, unknown_options
from rmqd.typed.annotations import AnnotationError, hint_of


@dataclass(frozen=True, slots=True)
class Fault:
    """A problem with a plugin, at a path below the key that names it in the configuration."""

    path: Path
    message: str
    at_key: bool = False


class PluginFaultError(Exception):
    """A plugin cannot be used; `faults` say why."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(fault.message for fault in faults))
        self.faults = faults


def plugin_fault(message: str) -> PluginFaultError:
    """An error with one fault, which is about the plugin itself."""
    return PluginFaultError(Fault(("plugin",), message))


def validated(kind: str, options: dict[str, Any], *, takes: bool, model: type[BaseModel] | None) -> Any:
    """The options as the plugin gets them: an instance of its model, or the dict. Raises PluginFaultError.

    `options` are those of the configuration, by which it is known what of them is not to be shown.
    """
    if not takes:
        if options:
            raise PluginFaultError(Fault(("options",), f"the {kind} takes no options; accepted: no options", True))
        return options
    given = _plain(options)
    if model is None:
        return given
    try:
        made = model.model_validate(given)
    except ValidationError as error:
        invalid = [_option_fault(model, one, options) for one in error.errors(include_url=False)]
        raise PluginFaultError(*invalid, *_unknown_faults(unknown_keys(given, model))) from None
    faults = _unknown_faults(unknown_options(given, made))
    if faults:
        raise PluginFaultError(*faults)
    return made


def annotated_model(target: Callable[..., Any], place: int) -> type[BaseModel] | None:
    """The pydantic model in the annotation of a function's parameter, counted from 0; None if there is none."""
    return model_of(target, list(inspect.signature(target).parameters.values())[place])


def model_of(
    target: Callable[..., Any], parameter: inspect.Parameter, names: Mapping[str, Any] | None = None
) -> type[BaseModel] | None:
    """The pydantic model in a parameter's annotation; None if there is none. `names` are those of `hint_of`."""
    try:
        hint = hint_of(target, parameter, names)
    except AnnotationError:
        return None
    return hint if inspect.isclass(hint) and issubclass(hint, BaseModel) else None


def room(target: Callable[..., Any]) -> tuple[int, int]:
    """How many positional arguments a callable needs, and takes. Raises ValueError if it needs keyword-only ones.

    A builtin without a signature is taken to need and take one.
    """
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (ValueError, TypeError):
        return 1, 1
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    required = [one for one in positional if one.default is one.empty]
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if named:
        raise ValueError(f"needs arguments by name that nobody gives: {', '.join(named)}")
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return len(required), max(len(positional), 1) if takes_any else len(positional)


def yields(target: Callable[..., Any]) -> bool:
    """Whether it is a generator function: calling one runs nothing of it."""
    call = target if inspect.isroutine(target) else getattr(target, "__call__", target)  # noqa: B004 - its code is asked for
    return any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in (target, call))


def is_async(target: Callable[..., Any]) -> bool:
    """Whether it is a coroutine function, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004


def with_article(word: str) -> str:
    """The word with its article."""
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def _plain(value: Any) -> Any:
    """Options with ordinary strings: a plugin must not see the class of text that came from `${...}`."""
    if isinstance(value, Substituted):
        return str(value)
    if isinstance(value, dict):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_plain(inner) for inner in value]
    return value


def _at(options: Any, path: Path) -> object:
    """What the configuration has at a path; None if a step of it is no key, as where a model has several forms."""
    for step in path:
        if isinstance(options, dict):
            options = options.get(step)
        elif isinstance(options, list) and isinstance(step, int) and step < len(options):
            options = options[step]
        else:
            return None
    return options


def _option_fault(model: type[BaseModel], details: ErrorDetails, options: dict[str, Any]) -> Fault:
    path, key = ("options", *details["loc"]), str(details["loc"][-1]) if details["loc"] else ""
    holder = model_at(model, details["loc"][:-1])
    fields = holder.model_fields if holder is not None else {}
    if details["type"] == "extra_forbidden":
        if holder is None:  # in one of several models, say
            return Fault(path, "unknown option", at_key=True)
        return _unknown_option(path, [field.alias or name for name, field in fields.items()])
    if details["type"] == "missing":
        field = fields.get(key)
        return Fault(path, f"missing; accepted: {(field and field.description) or 'a value'}")
    if details["type"] == "value_error":
        return Fault(path, str(details.get("ctx", {}).get("error", details["msg"])))
    if details["type"] == "list_type":
        return Fault(path, f"the value should be a list, such as {as_list(_at(options, details['loc']))}")
    return Fault(path, details["msg"].replace("Input should", "the value should", 1))


def _unknown_option(path: Path, known: list[str]) -> Fault:
    return Fault(path, unknown("option", str(path[-1]), known), at_key=True)


def _unknown_faults(found: Iterable[tuple[Path, list[str]]]) -> list[Fault]:
    return [_unknown_option(("options", *path), known) for path, known in found]
