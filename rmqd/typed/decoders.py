"""Decoders of bodies: what each format needs, what a body becomes, and what is wrong with one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from rmqd.handler_api import InvalidPayloadError
from rmqd.plain_text import describe, text_of
from rmqd.typed.decorator import Payload
from rmqd.typed.form import HandlerFormError, name_of
from rmqd.wire.messages.message import Message

_MOST_FAULTS: Final = 5  # of a body, that its reason names


@dataclass(frozen=True, slots=True)
class Decoder:
    """Makes values of bodies."""

    target: Any
    """The type of the values; Any where it is not known."""
    decode: Callable[[bytes], Any]
    shown: str
    """What the bodies should be, for people."""

    def payload(self, message: Message) -> Any:
        """The decoded body. Raises InvalidPayloadError."""
        try:
            return self.decode(message.body)
        except Exception as error:
            raise InvalidPayloadError(f"the body is no {self.shown}: {_fault(error)}") from error


def decoder_of(payload: Payload) -> Decoder:
    """The decoder for what a decorator says. Raises HandlerFormError, if it says something else than a type."""
    return Decoder(payload.target, _json(payload.target), f"{name_of(payload.target)} in JSON")


def _json(target: Any) -> Callable[[bytes], Any]:
    if _is_struct(target):
        import msgspec

        decode: Callable[[bytes], Any] = msgspec.json.Decoder(target).decode
        return decode
    return _adapter(target, "json").validate_json


def _adapter(target: Any, name: str) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(target)
    except PydanticUserError as error:
        accepted = "a pydantic model, a dataclass, a msgspec Struct, or another type that pydantic validates"
        raise HandlerFormError(
            f"{name}={target!r} is no type of a payload: {error.message.splitlines()[0]} accepted: {accepted}"
        ) from None


def _is_struct(target: Any) -> bool:
    """Whether it is a Struct of msgspec, which is imported by its author where it is one."""
    return inspect.isclass(target) and hasattr(target, "__struct_fields__") and hasattr(target, "__struct_config__")


def _fault(error: Exception) -> str:
    """What is wrong with a body, without its values: they may be secrets, and reasons are read by many."""
    if isinstance(error, ValidationError):
        faults = [
            _validation_fault(one["loc"], one["msg"]) for one in error.errors(include_url=False, include_input=False)
        ]
        more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
        return "; ".join(faults[:_MOST_FAULTS]) + more
    return text_of(error) if type(error).__module__ == "msgspec" else describe(error)


def _validation_fault(place: tuple[int | str, ...], text: str) -> str:
    return f"{'.'.join(map(str, place))}: {text}" if place else text
