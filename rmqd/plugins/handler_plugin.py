"""The valid forms of a handler plugin, and its conversion to a LoadedHandler.

A handler function is called with the batch, or with the batch and the options. A handler class is created with its
options, and has the method `handle` and optionally `start` and `stop`. Each of these may be synchronous or
asynchronous. A class that keeps calls open to gather messages also has a synchronous method `end_calls`. If a class
limits its concurrent calls, `calls_limited_by` names the option with the limit. A typed handler
(`rmqd.handler_api.typed`) is a function, or the method `handle` of a class.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import BaseModel

from rmqd.consumer.handling.handler_threads import HandlerNotAwaitedError, check_result
from rmqd.handler_api.batch import LoadedHandler, raise_returned_decision
from rmqd.handler_api.typed.decoders import Decoder, decoder_of
from rmqd.handler_api.typed.signatures import (
    TypedHandler,
    hides_typed_handler,
    is_async,
    is_generator_function,
    parameters_of,
    takes_positional,
)
from rmqd.handler_api.typed.typed_calls import TypedCalls
from rmqd.handler_api.typed.typed_form import (
    CallForm,
    Dependencies,
    HandlerFormError,
    call_form_of,
    takes_batch,
    type_name,
)
from rmqd.plugins.entry_points import why
from rmqd.plugins.option_form import OptionsForm, PluginFaultError, model_of, plugin_fault, refuse_unbound, with_article
from rmqd.runtime.own_threads import call_sync_or_async
from rmqd.runtime.plain_text import class_name

StartStop = tuple[Callable[[], Any] | None, Callable[[], Any] | None]
"""The start and stop functions of a part of a handler. Each may be None, synchronous or asynchronous."""


def with_start_stop(handler: LoadedHandler, parts: Sequence[StartStop]) -> LoadedHandler:
    """Return the handler with parts that start before the handler in order, and stop after it in reverse order.

    If a start fails, the started parts are stopped. If a stop fails, its exception is raised after the other stops.
    """
    own: StartStop = (handler.start, handler.stop)
    known = [part for part in (*parts, own) if any(part)]
    if known in ([], [own]):
        return handler
    started = AsyncExitStack()

    async def start() -> None:
        async with AsyncExitStack() as starting:
            for start_part, stop_part in known:
                if start_part is not None:
                    await call_sync_or_async(start_part)
                if stop_part is not None:
                    starting.push_async_callback(call_sync_or_async, stop_part)
            started.push_async_exit(starting.pop_all())

    return replace(handler, start=start, stop=started.aclose)


@dataclass(frozen=True, slots=True)
class TypedForm:
    """How the function of a typed handler is called."""

    decoder: Decoder
    form: CallForm

    @classmethod
    def of(cls, handler: TypedHandler, *, is_bound: bool) -> TypedForm:
        """Check a typed handler. `is_bound`: whether it has no parameter `self`. Raises PluginFaultError."""
        if is_generator_function(handler.function):
            raise plugin_fault("the plugin is a typed handler with yield, which would never run; remove yield")
        try:
            decoder = decoder_of(handler.payload)
            return cls(decoder, call_form_of(handler, decoder.target, is_bound=is_bound))
        except HandlerFormError as error:
            raise plugin_fault(str(error)) from error

    def takes_options(self, handler: TypedHandler) -> bool:
        """Return whether the handler's function, or one of its dependencies, takes the handler's options."""
        return any(True for _ in self._functions_with_options(handler))

    def options_model(self, handler: TypedHandler, own: type[BaseModel] | None = None) -> type[BaseModel] | None:
        """Return the model of the handler's options; None without a model.

        The function, its dependencies and the handler's class (model `own`) receive the same options. Raises
        PluginFaultError if none of their models is a subclass of all the others.
        """
        models = [own] if own is not None else []
        for function, names in self._functions_with_options(handler):
            try:
                model = model_of(function, inspect.signature(function).parameters["options"], names)
            except ValueError as error:
                raise plugin_fault(f"the plugin {error}") from None
            if model is not None:
                models.append(model)
        common = next((one for one in models if all(issubclass(one, other) for other in models)), None)
        if models and common is None:
            shown = " and as ".join(one.__name__ for one in models)
            raise plugin_fault(f"the plugin takes its options as {shown}; expected one model")
        return common

    def loaded(self, name: str, handler: TypedHandler, options: Any, own: StartStop = (None, None)) -> LoadedHandler:
        """Return the handler as a function of batches. A method is bound, and `own` has its class's start and stop."""
        is_coroutine, form = is_async(handler.function), self.form
        dependencies = Dependencies(form.dependencies, options, in_loop=is_coroutine)
        if form.parameter_for("options") is not None:
            dependencies.values["options"] = options
        on_invalid = handler.payload.on_invalid
        check = partial(check_result, handler_name=name)
        decoder = self.decoder
        if handler.payload.format == "decode":
            decoder = replace(decoder, check=partial(_check_payload, name))
        calls = TypedCalls(
            handler.function, decoder, form, on_invalid, dependencies.values, check, is_async=is_coroutine
        )
        loaded = LoadedHandler(name, calls.handler(), is_coroutine, *own)
        opened: StartStop = (dependencies.open, dependencies.close) if form.dependencies else (None, None)
        return with_start_stop(loaded, [opened])

    def _functions_with_options(self, handler: TypedHandler) -> Iterator[tuple[Callable[..., Any], Mapping[str, Any]]]:
        if self.form.parameter_for("options") is not None:
            yield handler.function, handler.names
        for dependency in self.form.dependencies.values():
            for make in dependency.functions_with_options():
                yield make, {}


def _check_payload(name: str, payload: object) -> None:
    raise_returned_decision(payload)
    if isinstance(payload, Awaitable):
        if isinstance(payload, Coroutine):
            payload.close()  # otherwise Python would warn about the coroutine later, at another place
        raise HandlerNotAwaitedError(
            f"decode of the handler {name} returned a {class_name(payload)} instead of a payload; write decode with "
            "`def`, and finish its work before it returns"
        )


_ACCEPTED = "a function of (batch) or (batch, options), or a class with handle(self, batch)"


@dataclass(frozen=True, slots=True)
class CallLimit:
    """The number of calls that a handler works on concurrently. Additional calls wait inside the handler."""

    option: str
    """The name of the option with this limit."""
    calls: int


@dataclass(frozen=True, slots=True)
class HandlerPlugin:
    """A handler plugin that was imported and checked, but not called."""

    name: str
    target: Callable[..., Any]
    options: OptionsForm
    typed: TypedForm | None = None

    @classmethod
    def of(cls, name: str, target: object) -> HandlerPlugin:
        """Check the imported object `target`. Raises PluginFaultError if it is not a handler."""
        refuse_unbound(name, target, "name the class: {owner}")
        if inspect.isclass(target):
            return cls(name, target, *_class_form(target))
        if isinstance(target, TypedHandler):
            typed = TypedForm.of(target, is_bound=True)
            options = OptionsForm(typed.takes_options(target), "options", typed.options_model(target))
            return cls(name, target, options, typed)
        if callable(target):
            if getattr(target, "__module__", "") == TypedHandler.__module__:
                raise plugin_fault(f"{name} is the decorator rmqd.handler; name the function that it decorates")
            _check_plain("handler", target, 0)
            return cls(name, target, OptionsForm.of_function(target, 1, f"expected {_ACCEPTED}"))
        raise _misfit(f"is {with_article(type(target).__name__)}, not a handler")

    def call_limit(self, options: Any) -> CallLimit | None:
        """Return the limit in the option that a class names in `calls_limited_by`, or None. `options` are validated."""
        name = getattr(self.target, "calls_limited_by", None)
        calls = getattr(options, name, None) if isinstance(name, str) else None
        return CallLimit(name, calls) if isinstance(name, str) and isinstance(calls, int) else None

    def load(self, options: Any) -> LoadedHandler:
        """Create the handler with validated options. Raises PluginFaultError if its constructor fails."""
        if isinstance(self.target, TypedHandler):
            assert self.typed is not None
            return self.typed.loaded(self.name, self.target, options)
        if not inspect.isclass(self.target):
            handle = self.options.bind_options(self.target, options)
            return LoadedHandler(self.name, handle, is_async(self.target), None, None)
        try:
            instance = self.options.bind_options(self.target, options)()
        except (Exception, SystemExit) as error:
            message = f"the handler's constructor failed: {why(error)}"
            raise plugin_fault(message, "options" if self.options.takes else "plugin") from error
        own = getattr(instance, "start", None), getattr(instance, "stop", None)
        if self.typed is not None:
            loaded = self.typed.loaded(self.name, instance.handle, options, own)
        else:
            loaded = LoadedHandler(self.name, instance.handle, is_async(instance.handle), *own)
        return replace(loaded, end_calls=getattr(instance, "end_calls", None))


def _class_form(target: type[Any]) -> tuple[OptionsForm, TypedForm | None]:
    handle = getattr(target, "handle", None)
    if not callable(handle):
        raise _misfit(f"is the class {target.__name__} without a method handle")
    own = inspect.getattr_static(target, "handle")
    static = isinstance(own.function if isinstance(own, TypedHandler) else own, staticmethod | classmethod)
    typed = None
    if isinstance(handle, TypedHandler):
        typed = TypedForm.of(handle, is_bound=static)
        if typed.form.parameter_for("options") is not None:
            raise _misfit("has a method handle with options; take them in the constructor")
    else:
        _check_room("handle", handle, 1 if static else 2, "(self, batch)")
        _check_plain("handle", handle, 0 if static else 1)
        if any(one.name == "options" for one in parameters_of(handle)):
            raise _misfit("has a method handle with options; take them in the constructor")
    for name in ("start", "stop", "end_calls"):
        method = getattr(target, name, None)
        if method is not None and not callable(method):
            raise _misfit(f"has a {name} that is not a method")
        if method is not None:
            static = isinstance(inspect.getattr_static(target, name), staticmethod | classmethod)
            _check_room(name, method, 0 if static else 1, "(self)")
            if is_generator_function(method) or (name == "end_calls" and is_async(method)):
                raise _misfit(f"has a method {name} with yield or async, which would never run")
    model = getattr(target, "Options", None)
    if model is not None and not (inspect.isclass(model) and issubclass(model, BaseModel)):
        raise _misfit(f"has Options that are not a pydantic.BaseModel but {with_article(type(model).__name__)}")
    try:
        options = OptionsForm.of(target, 0)
    except ValueError as error:
        raise _misfit(str(error)) from None
    if options.needs:
        needed = options.needs + options.takes
        raise _misfit(f"has a constructor that needs {needed} arguments, but rmqd passes only the options")
    if model is not None and not options.takes:
        hint = f": rename its parameter {options.default} to options" if options.default else ""
        raise _misfit(f"has Options, but its constructor does not take them{hint}")
    if typed is not None and typed.options_model(handle, model or options.model) != (model or options.model):
        raise _misfit("has a dependency that takes other options than its constructor; use one model for both")
    return replace(options, model=model), typed


def _check_room(name: str, target: Callable[..., Any], arguments: int, form: str) -> None:
    try:
        fits = takes_positional(target, arguments)
    except ValueError as error:
        raise _misfit(str(error)) from None
    if not fits:
        raise _misfit(f"has a method {name} that cannot be called as {name}{form}")


def _check_plain(name: str, target: Callable[..., Any], place: int) -> None:
    """Raise PluginFaultError if a function cannot take a batch as its positional argument with the index `place`."""
    if is_generator_function(target):
        raise _misfit(f"is a {name} with yield, which would never run")
    if hides_typed_handler(target):
        raise _misfit(f"is a {name} with a decorator or partial around @rmqd.handler, which must be outermost")
    step = "loop over the messages of the batch, or decode their bodies with @rmqd.handler(json=...)"
    # a decorated function is not checked, because its signature may belong to the wrapped function
    for batch in [] if hasattr(target, "__wrapped__") else parameters_of(target)[place : place + 1]:
        if batch.annotation is batch.empty and batch.name in ("message", "msg"):
            raise _misfit(f"gets a Batch in the parameter {batch.name} of its {name}; name it batch, and {step}")
        if batch.name == "options" or not takes_batch(target, batch):
            shown = "" if batch.annotation is batch.empty else f": {type_name(batch.annotation)}"
            raise _misfit(f"gets a Batch in the parameter {batch.name}{shown} of its {name}; {step}")


def _misfit(what: str) -> PluginFaultError:
    return plugin_fault(f"the plugin {what}; expected {_ACCEPTED}")
