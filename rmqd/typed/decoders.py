"""Decoders of bodies: what each format needs, what a body becomes, and what is wrong with one."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pydantic import PydanticUserError, TypeAdapter, ValidationError

from rmqd.handler_api import DECISIONS, InvalidPayloadError, leaves_of
from rmqd.plain_text import describe, text_of
from rmqd.typed.annotations import hint_of, returned_by, without_extras
from rmqd.typed.callables import is_async, owner_of_unbound, parameters_of, room, yields
from rmqd.typed.decorator import Payload
from rmqd.typed.form import HandlerFormError, name_of
from rmqd.wire.messages.message import Message

Decode = Callable[[bytes], Any]

_MOST_FAULTS: Final = 5  # of a body, that its reason names
_MOST_CAUSES: Final = 10  # of an exception, that are looked at: they may be a circle
_QUOTES_A_VALUE: Final = re.compile(r"Invalid (enum )?value(?= )")


@dataclass(frozen=True, slots=True)
class Decoder:
    """Makes values of messages."""

    target: Any
    """The type of the values; Any where it is not known."""
    decode: Callable[[Message], Any]
    shown: str
    """What the bodies should be, for people."""
    check: Callable[[Any], None] | None = None
    """Of a function of the author's: raises what its result means, if that is not a payload."""

    def payload(self, message: Message) -> Any:
        """The decoded body. Raises InvalidPayloadError, and what says nothing about the body as it was raised."""
        try:
            payload = self.decode(message)
        except Exception as error:
            if any(isinstance(one, DECISIONS) or _is_unavailable(one) for one in leaves_of(error)):
                raise
            raise InvalidPayloadError(f"the body is no {self.shown}: {_fault(error, self.target)}") from error
        if self.check is not None:
            self.check(payload)
        return payload


def decoder_of(payload: Payload) -> Decoder:
    """The decoder for what a decorator says. Raises HandlerFormError for what is no such thing, or not installed."""
    if payload.format == "decode":
        return _by_function(payload.target)
    make, name = _FORMATS[payload.format]
    decode = make(payload)
    return Decoder(payload.target, lambda message: decode(message.body), f"{name_of(payload.target)} in {name}")


def _json(payload: Payload) -> Decode:
    if _is_struct(payload.target):
        import msgspec

        decode: Decode = msgspec.json.Decoder(payload.target).decode
        return decode
    return _adapter(payload).validate_json


def _msgpack(payload: Payload) -> Decode:
    msgspec = _installed("msgspec", "msgpack")
    if _is_struct(payload.target):
        decode: Decode = msgspec.msgpack.Decoder(payload.target).decode
        return decode
    unpack, validate = msgspec.msgpack.decode, _adapter(payload).validate_python
    return lambda body: validate(unpack(body))


def _avro(payload: Payload) -> Decode:
    _installed("fastavro", "avro")
    from rmqd.typed.avro import reader_of

    read = reader_of(payload)
    if _is_struct(payload.target):
        convert, target = _installed("msgspec", "msgpack").convert, payload.target
        return lambda body: convert(read(body), target)
    validate = _adapter(payload).validate_python
    return lambda body: validate(read(body))


def _protobuf(payload: Payload) -> Decode:
    parse = getattr(payload.target, "FromString", None)
    if not inspect.isclass(payload.target) or not callable(parse):
        accepted = "a class of messages that protoc made, such as order_pb2.Order"
        raise HandlerFormError(f"protobuf={payload.target!r} parses no bodies; accepted: {accepted}")
    decode: Decode = parse
    return decode


_FORMATS: Final[dict[str, tuple[Callable[[Payload], Decode], str]]] = {
    "json": (_json, "JSON"),
    "msgpack": (_msgpack, "MessagePack"),
    "avro": (_avro, "Avro"),
    "protobuf": (_protobuf, "Protobuf"),
}


def _by_function(function: Any) -> Decoder:
    accepted = "a function of (body) or of (message: Message)"
    if not callable(function) or is_async(function) or yields(function):
        raise HandlerFormError(f"decode={function!r} is no synchronous function; accepted: {accepted}")
    if owner := owner_of_unbound(function):
        what = f"decode={owner}.{function.__name__} is a method without its object"
        raise HandlerFormError(f"{what}; accepted: the method of an object, as in {owner}().{function.__name__}")
    try:
        needs, most = room(function)
        takes_message = any(without_extras(hint_of(function, one)) is Message for one in parameters_of(function)[:1])
        made = returned_by(function)
    except ValueError as error:  # an AnnotationError too
        raise HandlerFormError(f"decode={function!r}: {error}; accepted: {accepted}") from None
    if needs > 1 or not most:
        raise HandlerFormError(f"decode={function!r} takes {needs or 'nothing'}; accepted: {accepted}")
    decode: Callable[[Message], Any] = function if takes_message else lambda message: function(message.body)
    return Decoder(made, decode, f"payload of {getattr(function, '__name__', 'decode')}")


def _installed(module: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError:
        what = f"{extra}= needs {module}, which is not installed here"
        raise HandlerFormError(f"{what}; accepted: after pip install 'rmqd[{extra}]'") from None


def _adapter(payload: Payload) -> TypeAdapter[Any]:
    try:
        return TypeAdapter(payload.target)
    except PydanticUserError as error:
        what = f"{payload.format}={payload.target!r} is no type of a payload: {error.message.splitlines()[0]}"
        accepted = "a pydantic model, a dataclass, a msgspec Struct, or another type that pydantic validates"
        raise HandlerFormError(f"{what} accepted: {accepted}") from None


def _is_struct(target: Any) -> bool:
    """Whether it is a Struct of msgspec, which is imported by its author where it is one."""
    return inspect.isclass(target) and hasattr(target, "__struct_fields__") and hasattr(target, "__struct_config__")


def _is_unavailable(error: BaseException) -> bool:
    """Whether something did not answer that a decoder asks, such as a schema registry.

    Libraries put errors of their own around those of a connection. An OSError without a number may be about the body:
    gzip and PIL raise such. A decoder may look for a file, and fail at the body after it has not found one.
    """
    one: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        is_numbered = isinstance(one, OSError) and one.errno is not None
        is_looked_for = isinstance(one, FileNotFoundError) and one is not error
        if isinstance(one, ConnectionError | TimeoutError) or (is_numbered and not is_looked_for):
            return True
        one = one and (one.__cause__ or (None if one.__suppress_context__ else one.__context__))
    return False


def _fault(error: Exception, target: Any) -> str:
    """What is wrong with a body, without its values: they may be secrets, and reasons are read by many."""
    if isinstance(error, ValidationError):
        declared = set(_names(TypeAdapter(target).core_schema))
        faults = [
            _validation_fault(
                [str(name) if isinstance(name, int) or name in declared else "[key]" for name in one["loc"]],
                one["type"],
                one["msg"],
                one.get("ctx", {}),
            )
            for one in error.errors(include_url=False, include_input=False)
        ]
        more = f"; and {len(faults) - _MOST_FAULTS} more" if len(faults) > _MOST_FAULTS else ""
        return "; ".join(faults[:_MOST_FAULTS]) + more
    return _msgspec_fault(text_of(error)) if type(error).__module__ == "msgspec" else describe(error)


def _names(schema: object) -> Iterator[str]:
    """Every name in a schema of pydantic. Other names in the location of an error are keys of the body's mappings."""
    if isinstance(schema, str):
        yield schema
    elif inspect.isclass(schema):
        yield schema.__name__
    elif isinstance(schema, Mapping):
        for key, value in schema.items():
            yield from _names(key)
            yield from _names(value)
    elif isinstance(schema, list | tuple):
        for one in schema:
            yield from _names(one)


def _validation_fault(place: list[str], kind: str, text: str, context: Mapping[str, object]) -> str:
    if kind == "union_tag_invalid":  # its text has the tag of the body
        text = f"The tag {context['discriminator']} is none of {context['expected_tags']}"
    return f"{'.'.join(place)}: {text}" if place else text


def _msgspec_fault(text: str) -> str:
    """msgspec's text: "Invalid enum value 'x' - at `$.a`" without the value, which may have any text itself."""
    quoting = _QUOTES_A_VALUE.match(text)
    if quoting is None:
        return text
    _, at, place = text.rpartition(" - at ")
    return f"{quoting[0]}{at}{place if at else ''}"
