"""Typed handlers as plugins: their faults, their options, and their conversion to a LoadedHandler."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pydantic import BaseModel

from rmqd.consumer.handling.threads import HandlerNotAwaitedError, check_result
from rmqd.handler_api import raise_returned
from rmqd.loaded_handler import LoadedHandler
from rmqd.plain_text import class_name
from rmqd.plugins.form import model_of, plugin_fault
from rmqd.plugins.lifecycle import Part, with_parts
from rmqd.typed.callables import is_async, yields
from rmqd.typed.calls import TypedCalls
from rmqd.typed.decoders import Decoder, decoder_of
from rmqd.typed.decorator import TypedHandler
from rmqd.typed.dependencies import Dependencies
from rmqd.typed.form import Form, HandlerFormError, form_of


@dataclass(frozen=True, slots=True)
class TypedForm:
    """How the function of a typed handler is called."""

    decoder: Decoder
    form: Form

    @classmethod
    def of(cls, handler: TypedHandler, *, is_bound: bool) -> TypedForm:
        """Check a typed handler. Raises PluginFaultError."""
        if yields(handler.function):
            raise plugin_fault("the plugin is a typed handler with yield, which would never run; remove yield")
        try:
            decoder = decoder_of(handler.payload)
            return cls(decoder, form_of(handler, decoder.target, is_bound=is_bound))
        except HandlerFormError as error:
            raise plugin_fault(str(error)) from error

    def takes_options(self, handler: TypedHandler) -> bool:
        """Return whether the function, or one of its dependencies, takes the handler's options."""
        return any(True for _ in self._takers(handler))

    def options_model(self, handler: TypedHandler) -> type[BaseModel] | None:
        """Return the options model in the annotation of the function or a dependency."""
        for function, names in self._takers(handler):
            parameter = inspect.signature(function).parameters["options"]
            if (model := model_of(function, parameter, names)) is not None:
                return model
        return None

    def loaded(self, name: str, handler: TypedHandler, options: Any, own: Part = (None, None)) -> LoadedHandler:
        """Return the handler of batches. A method is already bound, and `own` are the start and stop of its class."""
        is_coroutine, form = is_async(handler.function), self.form
        dependencies = Dependencies(form.dependencies, options, in_loop=is_coroutine)
        if form.named("options") is not None:
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
        opened: Part = (dependencies.open, dependencies.close) if form.dependencies else (None, None)
        return with_parts(loaded, [opened])

    def _takers(self, handler: TypedHandler) -> Iterator[tuple[Callable[..., Any], Mapping[str, Any]]]:
        if self.form.named("options") is not None:
            yield handler.function, handler.names
        for dependency in self.form.dependencies.values():
            for make in dependency.takers_of_options():
                yield make, {}


def _check_payload(name: str, payload: object) -> None:
    raise_returned(payload)
    if isinstance(payload, Awaitable):
        if isinstance(payload, Coroutine):
            payload.close()  # it never started; Python would warn about it elsewhere
        raise HandlerNotAwaitedError(
            f"decode of the handler {name} returned a {class_name(payload)} instead of a payload; write decode with "
            "`def`, and finish its work before it returns"
        )
