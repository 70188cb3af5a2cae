"""What a plugin's object must look like, and how it becomes a handler.

A plain function is called with the batch, or with the batch and the options. A class is made with its options and has
`handle`, and if it likes `start` and `stop`. Each of them may be synchronous or asynchronous.
"""

from __future__ import annotations

import functools
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from rmqd.daemon.config_problems import Path, unknown
from rmqd.daemon.entry_points import why
from rmqd.handler import LoadedHandler

_ACCEPTED = "a function of (batch) or (batch, options), or a class with handle(self, batch)"


@dataclass(frozen=True, slots=True)
class Fault:
    """Something wrong with a handler, at a path below `handler` in the configuration."""

    path: Path
    message: str
    at_key: bool = False


class HandlerFaultError(Exception):
    """A handler that cannot be used, and why."""

    def __init__(self, *faults: Fault) -> None:
        super().__init__("; ".join(fault.message for fault in faults))
        self.faults = faults


@dataclass(frozen=True, slots=True)
class HandlerPlugin:
    """A plugin that has the right form. It was imported, and nothing of it has run."""

    name: str
    target: Callable[..., Any]
    takes_options: bool
    options_model: type[BaseModel] | None

    @classmethod
    def of(cls, name: str, target: object) -> HandlerPlugin:
        """Look at what an entry point gave. Raises HandlerFaultError where it is no handler."""
        if inspect.isclass(target):
            return cls(name, target, *_class_form(target))
        if callable(target):
            return cls(name, target, *_function_form(target))
        raise _misfit(f"is {_a(type(target).__name__)}, and no handler")

    def validated(self, options: dict[str, Any]) -> Any:
        """What the handler is given: its model, or the dict. Raises HandlerFaultError for what it does not accept."""
        if not self.takes_options:
            if options:
                raise HandlerFaultError(Fault(("options",), "the handler takes no options; accepted: no options", True))
            return options
        if self.options_model is None:
            return options
        try:
            return self.options_model.model_validate(options)
        except ValidationError as error:
            model = self.options_model
            details = error.errors(include_url=False)
            raise HandlerFaultError(*(_option_fault(model, one) for one in details)) from None

    def load(self, options: Any) -> LoadedHandler:
        """The handler, made with options that `validated` gave. Raises HandlerFaultError if its constructor fails."""
        if not inspect.isclass(self.target):
            handle = functools.partial(_with_options, self.target, options) if self.takes_options else self.target
            return LoadedHandler(self.name, handle, _is_async(self.target), None, None)
        make: Any = self.target
        try:
            instance = make(options) if self.takes_options else make()
        except Exception as error:
            raise HandlerFaultError(
                Fault(("options",) if self.takes_options else ("plugin",), f"its constructor failed: {why(error)}")
            ) from error
        start, stop = getattr(instance, "start", None), getattr(instance, "stop", None)
        return LoadedHandler(self.name, instance.handle, _is_async(instance.handle), start, stop)


def _with_options(function: Callable[..., Any], options: Any, batch: Any) -> Any:
    return function(batch, options)


def _class_form(target: type[Any]) -> tuple[bool, type[BaseModel] | None]:
    handle = getattr(target, "handle", None)
    if not callable(handle):
        raise _misfit(f"is the class {target.__name__} without a method handle")
    static = isinstance(inspect.getattr_static(target, "handle"), staticmethod | classmethod)
    _check_room("handle", handle, 1 if static else 2, "(self, batch)")
    _check_no_generator("handle", handle)
    for name in ("start", "stop"):
        method = getattr(target, name, None)
        if method is not None and not callable(method):
            raise _misfit(f"has a {name} that is no method")
        if method is not None:
            static = isinstance(inspect.getattr_static(target, name), staticmethod | classmethod)
            _check_room(name, method, 0 if static else 1, "(self)")
    model = getattr(target, "Options", None)
    if model is not None and not (inspect.isclass(model) and issubclass(model, BaseModel)):
        raise _misfit(f"has Options that are no pydantic.BaseModel but {_a(type(model).__name__)}")
    required, most = _room(target)
    if required > 1:
        raise _misfit(f"has a constructor that needs {required} arguments, and gets its options alone")
    if most == 0 and model is not None:
        raise _misfit("has Options, and a constructor that does not take them")
    return most > 0, model


def _function_form(target: Callable[..., Any]) -> tuple[bool, type[BaseModel] | None]:
    _check_no_generator("handler", target)
    required, most = _room(target)
    if required > 2 or most == 0:
        raise _misfit(f"takes {'no arguments' if most == 0 else f'{required} arguments'}")
    if most == 1:
        return False, None
    return True, _annotated_model(target)


def _annotated_model(target: Callable[..., Any]) -> type[BaseModel] | None:
    """The model that a function names for its second parameter, if it does."""
    try:
        hints = typing.get_type_hints(target)
    except Exception:  # noqa: BLE001 - hints are free text, evaluated; one that cannot be names no model
        return None
    second = list(inspect.signature(target).parameters)[1]
    hint = hints.get(second)
    return hint if inspect.isclass(hint) and issubclass(hint, BaseModel) else None


def _room(target: Callable[..., Any]) -> tuple[int, int]:
    """How many positional arguments a callable needs, and how many it takes, as far as two matter."""
    try:
        parameters = list(inspect.signature(target).parameters.values())
    except (ValueError, TypeError):  # something built in, which tells nothing about itself
        return 1, 1
    positional = [one for one in parameters if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
    required = [one for one in positional if one.default is one.empty]
    named = [one.name for one in parameters if one.kind is one.KEYWORD_ONLY and one.default is one.empty]
    if named:
        raise _misfit(f"needs arguments by name that nobody gives: {', '.join(named)}")
    takes_any = any(one.kind is one.VAR_POSITIONAL for one in parameters)
    return len(required), max(len(positional), 1) if takes_any else len(positional)


def _check_room(name: str, target: Callable[..., Any], arguments: int, form: str) -> None:
    required, most = _room(target)
    if required > arguments or most < arguments:
        raise _misfit(f"has a method {name} that cannot be called as {name}{form}")


def _check_no_generator(name: str, target: Callable[..., Any]) -> None:
    call = target if inspect.isroutine(target) else getattr(target, "__call__", target)  # noqa: B004 - its code is asked for
    if any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in (target, call)):
        raise _misfit(f"is a {name} with yield, which would never run")


def _is_async(target: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(target) or inspect.iscoroutinefunction(getattr(target, "__call__", None))  # noqa: B004


def _misfit(what: str) -> HandlerFaultError:
    return HandlerFaultError(Fault(("plugin",), f"the plugin {what}; accepted: {_ACCEPTED}"))


def _a(word: str) -> str:
    return f"{'an' if word[:1].lower() in 'aeiou' else 'a'} {word}"


def _option_fault(model: type[BaseModel], details: ErrorDetails) -> Fault:
    path = ("options", *details["loc"])
    if details["type"] == "extra_forbidden":
        known = [field.alias or name for name, field in model.model_fields.items()] if len(path) == 2 else []
        return Fault(path, unknown("option", str(path[-1]), known), at_key=True)
    if details["type"] == "missing":
        field = model.model_fields.get(str(path[1])) if len(path) == 2 else None
        return Fault(path, f"missing; accepted: {(field and field.description) or 'a value'}")
    if details["type"] == "value_error":
        return Fault(path, str(details.get("ctx", {}).get("error", details["msg"])))
    return Fault(path, details["msg"].replace("Input should", "the value should", 1))
