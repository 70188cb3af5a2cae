"""The valid forms of a handler plugin, and its conversion to a LoadedHandler.

A plain function is called with the batch, or with the batch and the options. A class is created with its options, and
has `handle` and optionally `start` and `stop`. Each may be synchronous or asynchronous. A class that keeps calls open
to gather messages also has a synchronous `end_calls`. If its calls wait for each other above some number,
`calls_limited_by` names the option with that number. A typed handler (`rmqd.typed`) is a function, or the `handle` of a
class.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from pydantic import BaseModel

from rmqd.loaded_handler import LoadedHandler
from rmqd.plugins.entry_points import why
from rmqd.plugins.form import (
    Fault,
    OptionsForm,
    PluginFaultError,
    plugin_fault,
    refuse_unbound,
    with_article,
)
from rmqd.plugins.typed_handlers import TypedForm
from rmqd.typed.callables import is_async, parameters_of, room, yields
from rmqd.typed.decorator import TypedHandler

_ACCEPTED = "a function of (batch) or (batch, options), or a class with handle(self, batch)"


@dataclass(frozen=True, slots=True)
class CallLimit:
    """How many calls at once a handler really works on. Further calls wait inside it."""

    option: str
    """The option with this limit."""
    calls: int


@dataclass(frozen=True, slots=True)
class HandlerPlugin:
    """A plugin whose form was checked. It is imported, but none of its functions has run."""

    name: str
    target: Callable[..., Any]
    options: OptionsForm
    typed: TypedForm | None = None

    @classmethod
    def of(cls, name: str, target: object) -> HandlerPlugin:
        """Check the object of an entry point. Raises PluginFaultError if it is not a handler."""
        refuse_unbound(name, target, "name the class: {owner}")
        if inspect.isclass(target):
            return cls(name, target, *_class_form(target))
        if isinstance(target, TypedHandler):
            return cls(name, target, *_typed_function_form(target))
        if callable(target):
            return cls(name, target, _function_form(target))
        raise _misfit(f"is {with_article(type(target).__name__)}, not a handler")

    def validated(self, options: dict[str, Any]) -> Any:
        """Return the options in the handler's form: an instance of its model, or the dict. Raises PluginFaultError."""
        return self.options.validated("handler", options)

    def call_limit(self, options: Any) -> CallLimit | None:
        """Return the limit that a class names in `calls_limited_by`. `options` come from `validated`."""
        name = getattr(self.target, "calls_limited_by", None)
        calls = getattr(options, name, None) if isinstance(name, str) else None
        return CallLimit(name, calls) if isinstance(name, str) and isinstance(calls, int) else None

    def load(self, options: Any) -> LoadedHandler:
        """Create the handler. `options` come from `validated`. Raises PluginFaultError if its constructor fails."""
        if isinstance(self.target, TypedHandler):
            assert self.typed is not None
            return self.typed.loaded(self.name, self.target, options)
        if not inspect.isclass(self.target):
            handle = self.options.bound(self.target, options)
            return LoadedHandler(self.name, handle, is_async(self.target), None, None)
        try:
            instance = self.options.bound(self.target, options)()
        except (Exception, SystemExit) as error:
            raise PluginFaultError(
                Fault(("options",) if self.options.takes else ("plugin",), f"its constructor failed: {why(error)}")
            ) from error
        own = getattr(instance, "start", None), getattr(instance, "stop", None)
        if self.typed is not None:
            loaded = self.typed.loaded(self.name, instance.handle, options, own)
        else:
            loaded = LoadedHandler(self.name, instance.handle, is_async(instance.handle), *own)
        return replace(loaded, end_calls=getattr(instance, "end_calls", None))


def _typed_function_form(target: TypedHandler) -> tuple[OptionsForm, TypedForm]:
    typed = TypedForm.of(target, is_bound=True)
    return OptionsForm(typed.takes_options(target), "options", typed.options_model(target)), typed


def _class_form(target: type[Any]) -> tuple[OptionsForm, TypedForm | None]:
    handle = getattr(target, "handle", None)
    if not callable(handle):
        raise _misfit(f"is the class {target.__name__} without a method handle")
    static = isinstance(inspect.getattr_static(target, "handle"), staticmethod | classmethod)
    typed = None
    if isinstance(handle, TypedHandler):
        typed = TypedForm.of(handle, is_bound=static)
        if typed.form.named("options") is not None:
            raise _misfit("has a typed method with options; a class gets them in its constructor")
    else:
        _check_room("handle", handle, 1 if static else 2, "(self, batch)")
        _check_no_generator("handle", handle)
        if any(one.name == "options" for one in parameters_of(handle)):
            raise _misfit("has a method handle with options; a class gets them in its constructor")
    for name in ("start", "stop", "end_calls"):
        method = getattr(target, name, None)
        if method is not None and not callable(method):
            raise _misfit(f"has a {name} that is not a method")
        if method is not None:
            static = isinstance(inspect.getattr_static(target, name), staticmethod | classmethod)
            _check_room(name, method, 0 if static else 1, "(self)")
    model = getattr(target, "Options", None)
    if model is not None and not (inspect.isclass(model) and issubclass(model, BaseModel)):
        raise _misfit(f"has Options that are not a pydantic.BaseModel but {with_article(type(model).__name__)}")
    options = _options_form(target, 0)
    if options.needs:
        needed = options.needs + options.takes
        raise _misfit(f"has a constructor that needs {needed} arguments, but it gets only its options")
    if model is not None and not options.takes:
        hint = f": call its parameter {options.default} options" if options.default else ""
        raise _misfit(f"has Options, but its constructor does not take them{hint}")
    return replace(options, model=model), typed


def _function_form(target: Callable[..., Any]) -> OptionsForm:
    _check_no_generator("handler", target)
    options = _options_form(target, 1)
    if options.needs > 1 or options.most == 0:
        raise _misfit(f"takes {f'{options.needs + options.takes} arguments' if options.most else 'no arguments'}")
    return options


def _options_form(target: Callable[..., Any], place: int) -> OptionsForm:
    try:
        return OptionsForm.of(target, place)
    except ValueError as error:
        raise _misfit(str(error)) from None


def _room(target: Callable[..., Any]) -> tuple[int, int]:
    try:
        return room(target)
    except ValueError as error:
        raise _misfit(str(error)) from None


def _check_room(name: str, target: Callable[..., Any], arguments: int, form: str) -> None:
    required, most = _room(target)
    if required > arguments or most < arguments:
        raise _misfit(f"has a method {name} that cannot be called as {name}{form}")


def _check_no_generator(name: str, target: Callable[..., Any]) -> None:
    if yields(target):
        raise _misfit(f"is a {name} with yield, which would never run")


def _misfit(what: str) -> PluginFaultError:
    return plugin_fault(f"the plugin {what}; expected {_ACCEPTED}")
